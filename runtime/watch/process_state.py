"""What the kernel says about a process: proc(5)."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from everstep.runtime.watch.hang_culprit import ProcessState

_FILE_CALLS = (
    {"0": "read", "17": "read", "19": "read", "1": "write", "18": "write", "20": "write", "74": "fsync", "75": "fsync"}
    if os.uname().machine == "x86_64"
    else {}
)
"""By their numbers in linux/arch/x86/entry/syscalls/syscall_64.tbl: read, pread64, readv, write, pwrite64, writev,
fsync, fdatasync."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def process_state(pid: int, proc: Path = PROC) -> ProcessState | None:
    """The state of its main thread and the CPU time of all its threads; None if there is no such process."""
    folder = proc / str(pid)
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    syscall = _text(folder / "syscall").split()
    call, file = _FILE_CALLS.get(syscall[0], "") if syscall else "", ""
    if call:
        with suppress(OSError, ValueError):
            link = os.readlink(folder / "fd" / str(int(syscall[1], 16)))
            file = os.fsencode(link).decode(errors="replace")  # It goes into messages.
    return ProcessState(
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        wait_channel=_text(folder / "wchan"),
        call=call if file else "",
        file=file,
        major_faults=int(fields[9]),
        cpu_wait_s=_cpu_wait_s(folder),
        swapped_bytes=_status_number(folder, "VmSwap", 0) * 1024,
    )


def main_thread_state(pid: int, proc: Path = PROC) -> str:
    """The letter of its main thread's state; empty if there is no such process."""
    return _text(proc / str(pid) / "stat").rpartition(")")[2].strip()[:1]


def catches(pid: int, signum: int, proc: Path = PROC) -> bool:
    """Whether the process has a handler for that signal."""
    return bool(_status_number(proc / str(pid), "SigCgt", 0, 16) >> (signum - 1) & 1)


def activity(pid: int, proc: Path = PROC) -> tuple[float, int]:
    """(CPU seconds, bytes written or read from disk) so far of the process and those that it has started."""
    cpu_s, bytes_moved = 0.0, 0
    for member in family_of(pid, proc):
        fields = _text(proc / str(member) / "stat").rpartition(")")[2].split()
        if fields:
            cpu_s += sum(map(int, fields[11:15])) / _TICKS_PER_S  # With those of its children that have ended.
        bytes_moved += _io(proc / str(member), "wchar", "read_bytes")
    return cpu_s, bytes_moved


class FamilyUse(NamedTuple):
    """What a process and all that it has started use together."""

    cpu_s: float
    """CPU seconds so far, with those of processes that have ended."""
    memory_bytes: int
    """Their own pages, and the shared memory of the one that maps most of it; file pages do not count. An upper bound:
    pages shared after a fork count in each process."""
    disk_bytes: int = 0
    """Read from disk and written to it so far, with those of processes that have ended: Linux adds them to their
    parent's."""


def family_use(pid: int, proc: Path = PROC) -> FamilyUse:
    """The use of the process and of those that it has started."""
    cpu_s, own_kib, shared_kib, disk_bytes = 0.0, 0, 0, 0
    for member in family_of(pid, proc):
        folder = proc / str(member)
        disk_bytes += _io(folder, "read_bytes", "write_bytes")
        if fields := _text(folder / "stat").rpartition(")")[2].split():
            cpu_s += sum(map(int, fields[11:15])) / _TICKS_PER_S
        own_kib += _status_number(folder, "RssAnon", 0)
        shared_kib = max(shared_kib, _status_number(folder, "RssShmem", 0))
    return FamilyUse(cpu_s, (own_kib + shared_kib) * 1024, disk_bytes)


def network_bytes(proc: Path = PROC) -> int:
    """What has come and gone so far over the network interfaces that this process sees, without the loopback. RDMA is
    not counted there, and what passes a bridge or a bond is counted again."""
    rows = (line.partition(":") for line in _text(proc / "self/net/dev").splitlines())
    counts = [row.split() for name, _, row in rows if name.strip() != "lo"]
    return sum(int(count[0]) + int(count[8]) for count in counts if len(count) > 8 and count[0].isdecimal())


def busiest(before: dict[int, float], after: dict[int, float], seconds: float, proc: Path = PROC) -> str:
    """The process that used most CPU between two readings of `cpu_times`: `stress (pid 12), 3.9 cores`; or empty."""
    cpu_used = {pid: cpu_s - before[pid] for pid, cpu_s in after.items() if pid in before}
    if not cpu_used or seconds <= 0:
        return ""
    pid = max(cpu_used, key=lambda pid: (cpu_used[pid], -pid))
    cores, name = cpu_used[pid] / seconds, _text(proc / str(pid) / "comm")
    return f"{name} (pid {pid}), {cores:.1f} cores" if cores >= 0.1 and name else ""


def cpu_times(without: set[int], proc: Path = PROC) -> dict[int, float]:
    """CPU seconds so far of every process of this machine that this user sees, without these."""
    times = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) not in without:
            fields = _text(folder / "stat").rpartition(")")[2].split()
            if fields:
                times[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return times


def children_of(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that it has started, and that have not ended."""
    children = list[int]()
    with suppress(OSError):
        for thread in (proc / str(pid) / "task").iterdir():
            children += map(int, _text(thread / "children").split())
    return sorted(children)


def family_of(pid: int, proc: Path = PROC) -> Iterator[int]:
    """The process, those that it has started, and so on."""
    yield pid
    for child in children_of(pid, proc):
        yield from family_of(child, proc)


def _io(folder: Path, *names: str) -> int:
    """The sum of these counts of the process; 0 if they may not be read."""
    counts = (line.partition(": ") for line in _text(folder / "io").splitlines())
    return sum(int(number) for name, _, number in counts if name in names)


def _cpu_wait_s(folder: Path) -> float:
    """Of the main thread; 0 if this kernel does not count it (CONFIG_SCHED_INFO)."""
    fields = _text(folder / "schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def _status_number(folder: Path, name: str, default: int, base: int = 10) -> int:
    for line in _text(folder / "status").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1], base)
    return default


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()  # A process may call itself anything.
    except OSError:  # Not readable without privileges, or the process has just ended.
        return ""
