"""A user's own folder below the temporary one, where everybody may make folders: closed to others, or refused."""

import os
import stat
import tempfile
from pathlib import Path


def own_folder() -> Path:
    """For what this user's processes share on this machine; made if missing.

    Raises ValueError, one line: another user has made it, or has been let in.
    """
    folder = Path(tempfile.gettempdir()) / f"everstep-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(f"{folder}: it must be a folder that only this user can open; remove it")
    return folder
