"""Live processes of this machine, told apart by the variables that they were started with (proc(5), environ).

A session or a process group does not hold what a process detached from itself; what it inherited goes along, as long
as nobody clears it. A pid may be another process's by the time it is used: one is ended by a pidfd that was looked at.
"""

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
"""They may be forking: what forked while it was looked for is found in the next one."""
_DYING_S = 5.0
"""How long one sweep waits for what it killed."""
_READS = 20
_EXEC_S = 0.001
"""An environment that is empty is read so often, so far apart: the process may be in the midst of an exec."""
_GONE_ERRORS = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What reading of a process says that has ended, or is another user's."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Belongs = Callable[[frozenset[bytes]], bool]
"""Is a process meant that was started with each of these NAME=VALUE?"""


def is_shortage(error: OSError) -> bool:
    """Has this process, or the machine, too few descriptors or too little memory just now?"""
    return error.errno in _SHORTAGES


def start_time(pid: int) -> int | None:
    """When the live process began (clock ticks after boot); None where there is none, or only a zombie.

    Raises OSError where that cannot be known: whoever has no descriptor left must not take the living for dead.
    """
    try:
        fields = (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except _GONE_ERRORS:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def find_processes(belongs: Belongs) -> Iterator[int]:
    """Those live processes, but not the caller."""
    for entry in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(*_GONE_ERRORS):
            if belongs(_environment(int(entry.name))) and start_time(int(entry.name)) is not None:
                yield int(entry.name)


def kill_processes(belongs: Belongs) -> int:
    """SIGKILL all of them, until none is left. Returns how many were killed."""
    killed = 0
    for _ in range(_SWEEPS):
        dying = [pidfd for pid in find_processes(belongs) if (pidfd := _kill(pid, belongs)) is not None]
        if not dying:
            break
        killed += len(dying)
        for pidfd in dying:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(_DYING_S * 1000)
            os.close(pidfd)
    return killed


def _kill(pid: int, belongs: Belongs) -> int | None:
    """The pidfd of the process that was killed; None when it was gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with suppress(OSError):
        if belongs(_environment(pid)):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return pidfd
    os.close(pidfd)
    return None


def _environment(pid: int) -> frozenset[bytes]:
    """Each NAME=VALUE that the process was started with. Raises OSError for one that has ended, or may not be read.

    It reads as empty for a zombie and a thread of the kernel, which have no exe, and in the midst of an exec.
    """
    process = _PROCESSES / str(pid)
    for _ in range(_READS):
        if found := (process / "environ").read_bytes():
            return frozenset(found.split(b"\0"))
        os.readlink(process / "exe")
        time.sleep(_EXEC_S)
    return frozenset()
