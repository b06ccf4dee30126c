"""The packages of each image of templates/Containerfile, from the metadata of what is installed here."""

import importlib.metadata
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
IMAGES: Mapping[str, tuple[str, ...]] = {
    "submit": (),
    "preprocess": ("preprocess",),
    "train": ("train",),
    "everstep": ("preprocess", "train"),
}
"""The targets of templates/Containerfile, and the extras of pyproject.toml that each has."""
MACHINE = {
    "implementation_name": "cpython", "os_name": "posix", "platform_machine": "x86_64",
    "platform_python_implementation": "CPython", "platform_system": "Linux", "python_version": "3.11",
    "python_full_version": "3.11.2", "sys_platform": "linux",
}  # fmt: skip
"""The machine that the images are made for: Debian's Python on the usual machine."""


class NotInstalledError(LookupError):
    """A package of an image is not installed here."""


def image_packages(image: str) -> dict[str, Distribution]:
    """The packages of that image by canonical name, in its order. Raises NotInstalledError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in IMAGES[image])]
    packages: dict[str, Distribution] = {}
    open_ends = [Requirement(line) for lines in lists for line in lines]
    packages_visited = set[tuple[str, frozenset[str]]]()
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in packages_visited:
            continue
        packages_visited.add((name, frozenset(requirement.extras)))
        packages[name] = _distribution(name)
        open_ends += requirements_of(packages[name], requirement.extras)
    return dict(sorted(packages.items()))


def requirements_of(package: Distribution, extras: set[str] | frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """What that package requires on MACHINE, with these extras."""
    environment = {**default_environment(), **MACHINE}
    for line in package.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def _distribution(name: str) -> Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise NotInstalledError(f"{name} is not installed here: run make") from None
