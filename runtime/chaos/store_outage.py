"""A part of a directory store that is out of reach: a file stands where its folder was.

The two change places in one step (renameat2(2), RENAME_EXCHANGE), so no writer finds neither of them.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.runtime.chaos.injector import NotPossibleError

_AT_FDCWD, _EXCHANGE = -100, 2


def refusal(uri: str) -> str:
    """Why the store of that URI cannot be taken away here, in one line; empty if it can."""
    if "://" in uri and not uri.startswith("file://"):
        return f"{uri} is not a directory of this machine: stop its server yourself, or use --store DIRECTORY"
    return ""


@contextmanager
def out_of_reach(folder: Path) -> Iterator[str]:
    """Below `folder` nothing can be read or written; yields what was seen of it. Raises NotPossibleError, OSError."""
    aside = folder.with_name(f"~aside-{folder.name}")
    if aside.is_dir():
        mend = f"if that fault was killed: rm {folder} && mv {aside} {folder}"
        raise NotPossibleError(f"{folder} is out of reach already, by another fault; {mend}")
    aside.touch()
    try:
        _exchange(folder, aside)
    except OSError:
        aside.unlink()
        raise
    try:
        yield f"{folder.name} is not a folder: every write below it fails with ENOTDIR"
    finally:
        _exchange(folder, aside)
        aside.unlink()


def _exchange(first: Path, second: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first))
