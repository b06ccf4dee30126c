"""Pods run the launcher's own Python, as it was started: a venv's is known by its path, so no link is followed.

Its files are kept visible in a pod's private folders: a venv may be a link into /tmp or a home, and its `python` a link
to an interpreter that is one of uv, pyenv or conda.
"""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

NAMES = ("python", "python3")


def interpreter_paths(private: Iterable[str]) -> list[str]:
    """Folders of this Python and its imports, and those to which links of theirs lead; never a whole `private` one."""
    prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    folders = [*prefixes, *map(_above_bin, _linked_files(sys.executable)), *filter(os.path.isdir, sys.path)]
    paths = list(dict.fromkeys(path for folder in folders for path in (folder, os.path.realpath(folder))))
    paths = [path for path in paths if not any(f"{folder}/".startswith(f"{path.rstrip('/')}/") for folder in private)]
    return [path for path in paths if not any(path.startswith(f"{parent}/") for parent in paths)]


def search_path(folder: Path) -> str:
    """The folder in which `python` and `python3` are this Python; where there is none, it is made at `folder`."""
    own = Path(sys.executable).parent
    if all(_is_this_python(own / name) for name in NAMES):
        return str(own)
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        # A link would hide the venv: Python looks for its pyvenv.cfg beside the path by which it was started.
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), str(own)])


def _is_this_python(path: Path) -> bool:
    return path.exists() and os.path.samefile(path, sys.executable)


def _linked_files(path: str) -> Iterator[str]:
    """The file, and each to which it leads as a link of a link."""
    for _ in range(40):
        yield path
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _above_bin(path: str) -> str:
    """The prefix of a program in its `bin`; else the program alone, not the unrelated files beside it."""
    folder = os.path.dirname(path)
    is_prefix = os.path.basename(folder) == "bin" and os.path.isdir(os.path.join(os.path.dirname(folder), "lib"))
    return os.path.dirname(folder) if is_prefix else path
