"""What the kernel says about a process: proc(5)."""

import os
from contextlib import suppress
from pathlib import Path

from everstep.runtime.watch.hang_culprit import ProcessState

_FILE_CALLS = {"0": "read", "1": "write"} if os.uname().machine == "x86_64" else {}
"""By their numbers in linux/arch/x86/entry/syscalls/syscall_64.tbl."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process_state(pid: int, proc: Path = Path("/proc")) -> ProcessState | None:
    """The state of its main thread and the CPU time of all its threads; None if there is no such process."""
    folder = proc / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    syscall = _text(folder / "syscall").split()
    call, file = _FILE_CALLS.get(syscall[0], "") if syscall else "", ""
    if call:
        with suppress(OSError, ValueError):
            file = os.readlink(folder / "fd" / str(int(syscall[1], 16)))
    return ProcessState(
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        wait_channel=_text(folder / "wchan"),
        call=call if file else "",
        file=file,
        major_faults=int(fields[9]),
    )


def catches(pid: int, signum: int, proc: Path = Path("/proc")) -> bool:
    """Whether the process has a handler for that signal."""
    for line in _text(proc / str(pid) / "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # Not readable without privileges, or the process has just ended.
        return ""
