"""A user's own folder below the temporary one, where everybody may create folders: private, or refused."""

import os
import stat
import tempfile
from pathlib import Path

_BOOT_ID, _PID_NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


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


def own_process_folder() -> Path:
    """The folder in `own_folder` for what belongs to processes that are known by their pids; raises as it does.

    Several machines or containers may share the temporary folder. A pid means the same process in one boot of one
    machine and one pid namespace (pid_namespaces(7)), so each has a folder.
    """
    folder = own_folder() / f"{_BOOT_ID.read_text().strip()}-{_PID_NAMESPACE.stat().st_ino}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
