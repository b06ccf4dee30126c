"""Environments with other people's frameworks, one each, kept in ~/.cache/everstep/frameworks and used again.

An environment lies over the one that runs the tests: what it has not itself (torch, Everstep) it finds there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from everstep.runtime.system.file_lock import hold_lock

CACHE = Path.home() / ".cache" / "everstep" / "frameworks"
INSTALL_S = 1800.0
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")


class CannotInstallError(Exception):
    """The requirements cannot be installed here; says what pip said."""


@dataclass(frozen=True)
class Build:
    """A package that is built with what the environment has by then."""

    requirement: str
    variables: Mapping[str, str]
    """For the build."""


def environment(
    name: str,
    *requirements: str,
    python: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
    build: Build | None = None,
) -> Path:
    """The Python of an environment that has these requirements (as pip reads them), created if it is missing.

    `python`: an interpreter of another version; then the environment lies over nothing. `variables`: for pip.
    `build`: comes last.
    Raises CannotInstallError.
    """
    folder = CACHE / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join([python, *requirements, *([repr(build)] if build else [])]).encode()).hexdigest()
    with hold_lock(CACHE / f"{name}.lock", os.O_RDWR | os.O_CREAT):
        mark, own = folder / "requirements.sha256", folder / "bin" / "python"
        if not mark.exists() or mark.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _create(folder, own, requirements, python, variables)
            if build:
                _run([str(own), *PIP, "--no-build-isolation", "--no-deps", build.requirement], own, build.variables)
            mark.write_text(digest)
        if not python:
            _lay_over(folder)
    return own


def _create(folder: Path, own: Path, requirements: tuple[str, ...], python: str, variables: Mapping[str, str]) -> None:
    _run([python or sys.executable, "-m", "venv", str(folder)], own)
    if not python:
        _lay_over(folder)
    _run([str(own), *PIP, *requirements], own, variables)


def _lay_over(folder: Path) -> None:
    """Let it find the packages of the environment that runs this: those of another checkout last time, perhaps."""
    below = sysconfig.get_path("purelib")
    here = folder / Path(below).relative_to(sys.prefix) / "_below.pth"
    line = f"import site; site.addsitedir({below!r})\n"
    if not here.exists() or here.read_text() != line:
        here.write_text(line)


def _run(command: list[str], own: Path, variables: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run it with the environment's programs in the PATH."""
    path = f"{own.parent}:{os.environ['PATH']}"
    completed = subprocess.run(
        command, env={**os.environ, "PATH": path, **variables}, capture_output=True, text=True, timeout=INSTALL_S,
        check=False,
    )  # fmt: skip
    if completed.returncode:
        raise CannotInstallError(f"{' '.join(command)}: {completed.stderr.strip()[-2000:]}")
