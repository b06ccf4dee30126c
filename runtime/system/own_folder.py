"""A user's own folder below the temporary one, where everybody may create folders: private, or refused."""

import os
import stat
import tempfile
from pathlib import Path


def own_folder() -> Path:
    """The folder that this user's processes share on this machine; created if missing.

    Raises ValueError, one line: another user created the folder, or has access to it.
    """
    folder = Path(tempfile.gettempdir()) / f"everstep-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ValueError(f"{folder}: it must be a folder that only this user can open; remove it")
    return folder
