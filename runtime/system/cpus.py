"""How many processors this process may really use: those of its affinity, and of its control group's quota."""

import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""`QUOTA PERIOD` in microseconds, or `max PERIOD` (Linux, "Control Group v2")."""


def usable_cpus(cpu_max: Path = CPU_MAX) -> int:
    """At least 1."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text().split()
        return max(1, min(cpus, round(int(quota) / int(period))))
    except (OSError, ValueError):  # No such file outside of a control group; `max`: no quota.
        return cpus
