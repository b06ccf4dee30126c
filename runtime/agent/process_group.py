"""A worker's process group: a signal for all of it, and its end.

Python's resource trackers (multiprocessing/resource_tracker.py; joblib's loky has one, too) outlive a SIGKILL of their
group here. Such a process removes from /dev/shm what the killed ones made, such as a `SharedMemory`, and ends when none
of them is left. Killed with them, it would leave that memory behind in each round.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")
_TRACKER = b"resource_tracker import main"
"""In the command of a tracker."""
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_SWEEPS = 50
"""More than there are unless something forks without end."""


def signal_group(pid: int, signum: int) -> None:
    """Signal the process group of a worker that was not waited for yet; only the worker until it has made its group."""
    if signum == signal.SIGKILL and _kill_beside_trackers(pid):
        return
    with suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:
            os.kill(pid, signum)


def _kill_beside_trackers(group: int) -> bool:
    """SIGKILL each process of a group that has a tracker, which ends after them. Whether there is one, and no other
    process is left that could fork: the kernel forks nothing for a process that has been sent the signal."""
    killed: set[int] = set()
    for _ in range(_SWEEPS):
        members = set(_members(group))
        if not any(map(_is_tracker, members)):
            return bool(killed) and members <= killed
        new = {member for member in members - killed if not _is_tracker(member)}
        if not new:
            return True
        for member in new:
            _kill_member(member, group)
        killed |= new
    return False


def _kill_member(pid: int, group: int) -> None:
    """Not a later process of the same number."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            if _group_of(pid) == group:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _members(group: int) -> Iterator[int]:
    """Its live processes."""
    for name in os.listdir(_PROCESSES):
        if name.isdigit() and _group_of(int(name)) == group:
            yield int(name)


def _group_of(pid: int) -> int:
    """The group of a live process; 0: there is none, or only a zombie."""
    with suppress(*_GONE):
        state, _, group = (_PROCESSES / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[:3]
        return 0 if state in b"ZX" else int(group)
    return 0


def _is_tracker(pid: int) -> bool:
    with suppress(*_GONE):
        return _TRACKER in (_PROCESSES / str(pid) / "cmdline").read_bytes()
    return False
