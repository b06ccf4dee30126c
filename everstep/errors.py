"""The errors that public names raise: `except everstep.errors.RestoreError`. Each text is one line.

Importing this module costs nothing; each error imports its own module when it is first used.
"""

import errno
import os
import platform
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.runtime.system.platform_support import has_pidfds, platform_lack

if TYPE_CHECKING:
    from everstep.runtime.checkpoint.errors import RestoreError, StateError
    from everstep.runtime.data import DatasetError
    from everstep.runtime.data.results import ResultsError
    from everstep.runtime.protocol.worker_link import LinkError
    from everstep.runtime.store import StoreError

__all__ = ["BadInput", "DatasetError", "LinkError", "RestoreError", "ResultsError", "StateError", "StoreError"]

_MODULES = {
    "DatasetError": "everstep.runtime.data",
    "LinkError": "everstep.runtime.protocol.worker_link",
    "RestoreError": "everstep.runtime.checkpoint.errors",
    "ResultsError": "everstep.runtime.data.results",
    "StateError": "everstep.runtime.checkpoint.errors",
    "StoreError": "everstep.runtime.store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'everstep.errors' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


class BadInput(Exception):  # noqa: N818 - what it is, not how it is told
    """One line that says what, where, and how to fix it. Exit code 2."""


def require_platform() -> None:
    """Raise BadInput on a system that lacks what local runs need."""
    if lack := platform_lack(sys.platform, platform.release(), has_pidfds()):
        raise BadInput(lack)


def permission_line(error: PermissionError) -> str:
    """The one line for a file or folder that this user may not use; it names the owner."""
    path = Path(str(error.filename or ""))
    for folder in (path, *path.absolute().parents):
        try:
            return f"{path}: {error.strerror}; {folder} belongs to {_owner(folder)}"
        except OSError:
            continue
    return f"{path}: {error.strerror}"


def why_not_writable(folder: Path) -> str:
    """Why nothing can be written into this folder, which need not exist yet; empty if it can. Makes nothing."""
    nearest = next(ancestor for ancestor in (folder, *folder.absolute().parents) if os.path.lexists(ancestor))
    if not nearest.is_dir():
        return f"{nearest}: {os.strerror(errno.ENOTDIR)}"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest}: {os.strerror(errno.EACCES)}"


def _owner(path: Path) -> str:
    try:
        return f"user {path.owner()}"
    except KeyError:
        return f"user {path.stat().st_uid}"
