"""Live processes of this machine, identified by the variables that they were started with (proc(5), environ).

A session or a process group loses processes that detach themselves; inherited variables stay unless a process clears
them. A pid may have been reused by the time of a kill, so processes are killed by a pidfd that was checked.
"""

import asyncio
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")
_SWEEPS = 50
"""Processes may be forking: a child that was missed is found in the next sweep."""
_DYING_S = 5.0
"""Seconds that one sweep waits for its victims."""
_READS = 20
_EXEC_S = 0.001
"""An empty environment is read again this many times, with this pause: the process may be in the middle of an exec."""
_GONE_ERRORS = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors of reading a process that has ended, or belongs to another user."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN)
"""The last is what fork(2) says where no more processes may be started. A socket that does not block says it while it
has nothing, which callers must tell apart before they ask."""

Belongs = Callable[[frozenset[bytes]], bool]
"""Decides whether a process is meant, from the NAME=VALUE strings that it was started with."""


def is_shortage(error: OSError) -> bool:
    """Does this process, or the machine, lack descriptors, memory or room for another process at the moment?"""
    return error.errno in _SHORTAGES


def start_time(pid: int) -> int | None:
    """When the live process began (clock ticks after boot); None if there is none, or only a zombie.

    Raises OSError if that cannot be determined: without a free descriptor a live process must not look dead.
    """
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def group_of(pid: int) -> int | None:
    """The process group of a live process; None and OSError as of `start_time`."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[2])


def _stat_fields(pid: int) -> list[str] | None:
    """What proc(5), stat, has after the name of a live process."""
    try:
        fields = _all_stat_fields(pid)
    except _GONE_ERRORS:
        return None
    return None if fields[0] in "ZX" else fields


def _all_stat_fields(pid: int) -> list[str]:
    return (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()


def dead_orphans() -> Iterator[int]:
    """The children of this process that have ended, that nobody has waited for, and that are of another session."""
    own, session = str(os.getpid()), str(os.getsid(0))
    for pid in all_pids():
        with suppress(*_GONE_ERRORS):
            state, parent, _, session_of_child = _all_stat_fields(pid)[:4]
            if state == "Z" and parent == own and session_of_child != session:
                yield pid


def all_pids() -> Iterator[int]:
    """Of all processes; none where there is no /proc."""
    for entry in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if entry.name.isdigit():
            yield int(entry.name)


async def wait_for_end(pidfd: int) -> None:
    """Wait on the running event loop until the process has ended. The descriptor stays open."""
    loop, end_event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, end_event.set)
    try:
        await end_event.wait()
    finally:
        loop.remove_reader(pidfd)  # Else the loop would take the next descriptor of this number for this one.


def find_processes(belongs: Belongs) -> Iterator[int]:
    """The matching live processes, except the caller."""
    for pid in all_pids():
        with suppress(*_GONE_ERRORS):
            if pid != os.getpid() and belongs(_environment(pid)) and start_time(pid) is not None:
                yield pid


def kill_processes(belongs: Belongs) -> int:
    """SIGKILL all matching processes until none is left. Returns how many were killed."""
    killed_count = 0
    for _ in range(_SWEEPS):
        dying = [
            pidfd
            for pid in find_processes(belongs)
            if (pidfd := kill_checked(pid, lambda pid: belongs(_environment(pid)))) is not None
        ]
        if not dying:
            break
        killed_count += len(dying)
        for pidfd in dying:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(_DYING_S * 1000)
            os.close(pidfd)
    return killed_count


def kill_checked(pid: int, is_meant: Callable[[int], bool]) -> int | None:
    """Kill one process if it is meant, and not a later one of its number; returns its pidfd, or None if it was gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with suppress(OSError):
        if is_meant(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return pidfd
    os.close(pidfd)
    return None


def _environment(pid: int) -> frozenset[bytes]:
    """The NAME=VALUE strings that the process was started with. Raises OSError if it has ended, or may not be read.

    They are empty for a zombie and for a kernel thread (neither has an exe), and in the middle of an exec.
    """
    process = _PROCESSES / str(pid)
    for _ in range(_READS):
        if content := (process / "environ").read_bytes():
            return frozenset(content.split(b"\0"))
        os.readlink(process / "exe")
        time.sleep(_EXEC_S)
    return frozenset()
