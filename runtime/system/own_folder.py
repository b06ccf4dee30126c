"""A user's own folder below the temporary one, where everybody may create folders: private, or refused."""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from everstep.runtime.system.file_lock import hold_lock, open_locked

_BOOT_ID, _PID_NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_LOCK = ".lock"
"""What follows a process folder's name in that of the file beside it that is locked."""


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


def hold_process_folder() -> Path:
    """The folder in `own_folder` for what belongs to processes that are known by their pids; raises as it does.

    Several machines or containers may share the temporary folder. A pid means the same process in one boot of one
    machine and one pid namespace (pid_namespaces(7)), so each has a folder. `remove_abandoned_folders` leaves it until
    this process and all others that hold it have ended.
    """
    folder = own_folder() / f"{_BOOT_ID.read_text().strip()}-{_PID_NAMESPACE.stat().st_ino}"
    with suppress(OSError):  # The file system has no locks: then nobody can tell that the folder is abandoned.
        open_locked(folder.with_name(f"{folder.name}{_LOCK}"), os.O_RDWR | os.O_CREAT, is_shared=True, mode=0o600)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def remove_abandoned_folders() -> None:
    """Remove the process folders that no process holds any more: of an earlier boot, of a container that has ended.

    Invariant: who holds a folder has a lock on the file beside it, which is removed last. The kernel ends the lock with
    the process, wherever that ran; nobody else knows what its pid means.
    """
    for path in own_folder().glob(f"*{_LOCK}"):
        # Somebody holds it, or has removed it meanwhile; what cannot be removed now is tried again.
        with suppress(OSError), hold_lock(path, os.O_RDWR, wait_s=0):
            if path.with_suffix("").is_dir():
                shutil.rmtree(path.with_suffix(""))
            path.unlink()
