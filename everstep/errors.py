"""Errors that are known before anything starts."""

import errno
import os
import platform
import sys
from pathlib import Path

from everstep.runtime.system.platform_support import platform_lack


class BadInput(Exception):  # noqa: N818 - what it is, not how it is told
    """One line that says what, where, and how to fix it. Exit code 2."""


def require_platform() -> None:
    """Raise BadInput on a system that lacks what local runs need."""
    if lack := platform_lack(sys.platform, platform.release()):
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
    there = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        return f"{there}: {os.strerror(errno.ENOTDIR)}"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there}: {os.strerror(errno.EACCES)}"


def _owner(path: Path) -> str:
    try:
        return f"user {path.owner()}"
    except KeyError:
        return f"user {path.stat().st_uid}"
