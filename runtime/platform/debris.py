"""What a node leaves behind: processes that carry its job and name in their environment, and its shared memory.

A killed agent takes its workers along (parent-death signals), but not what those started: that is found here.
"""

import hashlib
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PROCESSES = Path("/proc")
_SWEEPS = 50
_DYING_S = 5.0
"""How long one sweep waits for what it killed."""
_READS = 20
_EXEC_S = 0.001
"""An environment that is empty is read so often, so far apart: the process may be in the midst of an exec."""


def memory_prefix(job: str, node: str) -> str:
    """What the names of a node's shared memory begin with; a dot before it marks the agent's private folder."""
    return f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-{node}-"


def start_time(pid: int) -> int | None:
    """When the live process began (clock ticks after boot); None where there is none, or only a zombie."""
    try:
        fields = (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def environment(pid: int) -> frozenset[bytes]:
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


def processes_of(job: str, node: str) -> Iterator[int]:
    """Live processes that were started with this node in their environment, but not the caller."""
    wanted = _marks(job, node)
    for entry in _PROCESSES.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted <= environment(int(entry.name)) and start_time(int(entry.name)) is not None:
                yield int(entry.name)


def end_processes(job: str, node: str) -> int:
    """SIGKILL all of them, again until none is left (they may be forking). Returns how many were killed."""
    killed = 0
    for _ in range(_SWEEPS):
        dying = [pidfd for pid in processes_of(job, node) if (pidfd := _kill(pid, job, node)) is not None]
        if not dying:
            break
        killed += len(dying)
        for pidfd in dying:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(_DYING_S * 1000)
            os.close(pidfd)
    return killed


def remove_memory(job: str, node: str, folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the node's shared memory; the names of what was there."""
    prefix, removed = memory_prefix(job, node), []
    for path in [*folder.glob(f"{prefix}*"), *folder.glob(f".{prefix}*")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path.name)
    return removed


def clean(job: str, node: str, folder: Path = SHARED_MEMORY) -> None:
    """Leave nothing of a node whose agent is gone."""
    end_processes(job, node)
    remove_memory(job, node, folder)


def _marks(job: str, node: str) -> set[bytes]:
    """What a process of the node carries in its environment."""
    return {f"EVERSTEP_JOB={job}".encode(), f"EVERSTEP_NODE={node}".encode()}


def _kill(pid: int, job: str, node: str) -> int | None:
    """SIGKILL by pidfd, so that a process which took over the pid is not hit; the pidfd, or None when it was gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if _marks(job, node) <= environment(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return pidfd
    except (OSError, ProcessLookupError):
        pass
    os.close(pidfd)
    return None
