"""How many processors this process may really use: those of its affinity, and of its control group's quota."""

import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""`QUOTA PERIOD` in microseconds, or `max PERIOD` (Linux, "Control Group v2")."""
CPU_STAT = Path("/sys/fs/cgroup/cpu.stat")
"""`usage_usec MICROSECONDS` and other lines, as above."""


def usable_cpus(cpu_max: Path = CPU_MAX) -> int:
    """At least 1."""
    cpus, quota = len(os.sched_getaffinity(0)), cpu_quota(cpu_max)
    return cpus if quota is None else max(1, min(cpus, round(quota)))


def cpu_quota(cpu_max: Path = CPU_MAX) -> float | None:
    """How many processors' time its control group may use; None: there is no quota."""
    try:
        quota, period = cpu_max.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # No such file outside of a control group; `max`: no quota.
        return None


def used_cpu_s(cpu_stat: Path = CPU_STAT) -> float:
    """CPU seconds that its control group has used. Raises OSError, KeyError."""
    values = dict(line.split() for line in cpu_stat.read_text().splitlines())
    return int(values["usage_usec"]) / 1e6
