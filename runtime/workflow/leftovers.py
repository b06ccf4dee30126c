"""What pods have left running, also what they made a daemon: found by the variables that every process inherits.

A session or a process group does not hold what a pod detached from itself, and the process that inherits it is not
ours. The environment with which a process was started does (proc(5), environ), as long as nobody clears it.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROUNDS = 20
"""One that forks while it is looked for is found in the next round."""


def end(run_dir: Path) -> None:
    """SIGKILL every process that a pod of this run has left. A reused pid is never hit."""
    for _ in range(ROUNDS):
        if not [pid for pid in _of(run_dir) if _kill(pid, run_dir)]:
            break


def _of(run_dir: Path) -> Iterator[int]:
    for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_of(int(entry.name), run_dir):
            yield int(entry.name)


def _is_of(pid: int, run_dir: Path) -> bool:
    try:
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"EVERSTEP_RUN_DIR={run_dir}".encode() in told and any(one.startswith(b"ARGO_NODE_ID=") for one in told)


def _kill(pid: int, run_dir: Path) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _is_of(pid, run_dir):
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return True
    finally:
        os.close(process)
