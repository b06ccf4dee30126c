"""The most memory that a process has had (proc(5): VmHWM).

getrusage's `ru_maxrss` also counts what the process that forked this one had just then.
"""

import os
from pathlib import Path


def peak_bytes(pid: int | None = None) -> int:
    """Since it was started, or since `forget_peak`; without `pid`, of this process."""
    status = Path(f"/proc/{pid or os.getpid()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def forget_peak() -> None:
    """What this process has now counts as its peak."""
    Path("/proc/self/clear_refs").write_text("5")
