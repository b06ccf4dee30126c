"""constraints.txt: one exact version of each package, for every platform, with the hashes of all its files."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class LockedPackage:
    """A package as it may be installed."""

    name: str
    """Canonical: lower case, with `-`."""
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file of that version."""


def parse_lock(text: str) -> list[LockedPackage]:
    """The packages of a lock, in their order. Raises ValueError for one without exact version or hashes."""
    packages = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in filter(None, re.sub(r"\\\n", "", lines).splitlines()):
        requirement = Requirement(line.partition("--hash")[0].strip())
        (exact, *more) = [pin.version for pin in requirement.specifier if pin.operator == "=="] or [""]
        hashes = tuple(HASH.findall(line))
        if not exact or more or requirement.url or not hashes or len(hashes) != line.count("--hash"):
            raise ValueError(f"{requirement.name}: give one version with ==, and the sha256 of each of its files")
        packages.append(LockedPackage(canonicalize_name(requirement.name), exact, hashes))
    return packages


def requirements(project: Mapping[str, Any]) -> list[Requirement]:
    """The requirements of pyproject.toml, its own and those of all its extras."""
    lists: Iterable[list[str]] = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(line) for lines in lists for line in lines]
    return [requirement for requirement in requirements if requirement.name != project["name"]]


def disagreements(project: Mapping[str, Any], packages: Iterable[LockedPackage]) -> list[str]:
    """Where the table `project` of pyproject.toml and the lock contradict each other; `make lock` fixes it."""
    versions = {package.name: package.version for package in packages}
    problems = []
    for requirement in requirements(project):
        version = versions.get(canonicalize_name(requirement.name))
        if version is None:
            problems.append(f"{requirement.name} is not in constraints.txt")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"pyproject.toml asks for {requirement}, constraints.txt has {version}")
    return problems
