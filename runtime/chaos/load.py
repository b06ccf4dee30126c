"""Programs that use up a machine, or try it: `python -m everstep.runtime.chaos.load cpu SHARE SECONDS`, and so on.

They import only the standard library, and end with whoever started them. The first line of their output says that they
work.

    cpu SHARE SECONDS             keep one core busy for that share of the time
    memory SHARE SECONDS GROUP    fill the control group to that share of its limit and hold it; SHARE above 1: until
                                  the kernel kills somebody, 60 seconds at the most
    connect HOST PORT             exit code 0 if a connection is accepted within 2 seconds
    write FOLDER BYTES            print how many seconds it takes to write that much there, down to the disk
"""

import mmap
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

_PERIOD_S = 0.05
_STEP_BYTES = 16 << 20
FILL_S = 60.0
"""How long filling a group may take."""
_FILES = (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"))
"""Limit and use in a control group, v1 and v2."""


def use_cpu(share: float, seconds: float) -> None:
    """Spin for `share` of each period."""
    parent, until = os.getppid(), time.monotonic() + seconds
    print("busy", flush=True)
    while (now := time.monotonic()) < until and os.getppid() == parent:
        while time.monotonic() < now + share * _PERIOD_S:
            pass
        time.sleep((1 - share) * _PERIOD_S)


def memory_use(group: Path) -> tuple[int, int]:
    """(bytes used, limit) of a control group; a limit of 0: none. Raises OSError."""
    for limit, bytes_used in _FILES:
        if (group / limit).exists():
            text = (group / limit).read_text().strip()
            return int((group / bytes_used).read_text()), 0 if text == "max" else int(text)
    return 0, 0


def fill_memory(share: float, seconds: float, group: Path) -> None:
    """Hold memory so that the group uses `share` of its limit, for `seconds` once it does, or until the group is gone.

    A busy machine may fill it slowly: after FILL_S it is given up.
    """
    if str(os.getpid()) not in (group / "cgroup.procs").read_text().split():  # In a container it is there, and may not.
        (group / "cgroup.procs").write_text(str(os.getpid()))
    parent, until, is_reported = os.getppid(), time.monotonic() + FILL_S, False
    file, size = os.memfd_create("everstep-memory"), 0
    while time.monotonic() < until and os.getppid() == parent and _others(group):
        bytes_used, limit = memory_use(group)
        if bytes_used < share * limit - _STEP_BYTES:
            size += _STEP_BYTES
            os.ftruncate(file, size)
            _touch_end(file, size)
            continue
        if not is_reported:
            is_reported, until = True, time.monotonic() + seconds
            print(f"{bytes_used} of {limit}", flush=True)
        if size and bytes_used > share * limit + _STEP_BYTES:
            size -= _STEP_BYTES
            os.ftruncate(file, size)
        time.sleep(_PERIOD_S)


def _others(group: Path) -> bool:
    """Does anybody but this process live in the group?"""
    return (group / "cgroup.procs").read_text().split() != [str(os.getpid())]


def _touch_end(file: int, size: int) -> None:
    """Use the last step of a file in memory. It is not mapped afterwards: else the kernel, out of memory, would rather
    kill this process, which in a pod counts as much as the others."""
    with mmap.mmap(file, _STEP_BYTES, offset=size - _STEP_BYTES) as block:
        for page in range(0, _STEP_BYTES, mmap.PAGESIZE):
            block[page] = 1


def connect(host: str, port: int) -> None:
    """Raises OSError."""
    socket.create_connection((host, port), timeout=2).close()


def write(folder: Path, size: int) -> float:
    """Seconds. The file has no name and is gone at the end. Raises OSError."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    try:
        began = time.monotonic()
        os.pwrite(descriptor, os.urandom(size), 0)
        os.fsync(descriptor)
        return time.monotonic() - began
    finally:
        os.close(descriptor)


def main(words: list[str]) -> int:
    """Run the named program."""
    match words:
        case ["cpu", share, seconds]:
            use_cpu(float(share), float(seconds))
        case ["memory", share, seconds, group]:
            with suppress(FileNotFoundError):  # The group is gone, as its node has ended.
                fill_memory(float(share), float(seconds), Path(group))
        case ["connect", host, port]:
            try:
                connect(host, int(port))
            except OSError:
                return 1
        case ["write", folder, size]:
            print(f"{write(Path(folder), int(size)):.3f}", flush=True)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
