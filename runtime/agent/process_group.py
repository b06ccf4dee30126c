"""A worker's process group: a signal for all of it, and its end.

Python's resource trackers (multiprocessing/resource_tracker.py; joblib's loky has one, too) outlive a SIGKILL of their
group here. Such a process removes from /dev/shm what the killed ones made, such as a `SharedMemory`, and ends when none
of them is left. Killed with them, it would leave that memory behind in each round.
"""

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from everstep.runtime.system.processes import all_pids, group_of, kill_checked

_TRACKER = b"resource_tracker import main"
"""In the command of a tracker."""
_SWEEPS = 50
"""More than there are unless something forks without end."""


def signal_group(pid: int, signum: int) -> None:
    """Signal the process group of a worker that was not waited for yet; only the worker until it has made its group."""
    with suppress(OSError):
        if signum == signal.SIGKILL and _kill_beside_trackers([pid]):
            return
    with suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:
            os.kill(pid, signum)


def kill_rest(groups: Collection[int]) -> None:
    """SIGKILL what is left of the process groups of workers that somebody else may have waited for. Such a group's
    number may have become another process's, so only processes that are in it are killed, each by itself."""
    with suppress(OSError):
        _kill_beside_trackers(groups, also_without=True)


def _kill_beside_trackers(groups: Collection[int], *, also_without: bool = False) -> bool:
    """SIGKILL each process of groups that have a tracker, which ends after them. Whether there is one, and no other
    process is left that could fork: the kernel forks nothing for a process that has been sent the signal. Raises
    OSError: this process lacks descriptors. `also_without`: also if there is no tracker."""
    killed: set[int] = set()
    for _ in range(_SWEEPS):
        members = {pid for pid in all_pids() if group_of(pid) in groups}
        trackers = {pid for pid in members if _is_tracker(pid)}
        if not trackers and not also_without:
            return bool(killed) and members <= killed
        new = members - trackers - killed
        if not new:
            return True
        for member in new:
            if (pidfd := kill_checked(member, lambda pid: group_of(pid) in groups)) is not None:
                os.close(pidfd)
        killed |= new
    return False


def _is_tracker(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
