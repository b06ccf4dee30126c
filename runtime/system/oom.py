"""Detects OOM kills through the counter of this process's own cgroup, v2 or v1.

Sources: the kernel's "Control Group v2", memory.events (`oom_kill`: processes in the group and its children killed by
any OOM killer), and "Memory Resource Controller", memory.oom_control (`oom_kill`, since Linux 4.13).
"""

from collections.abc import Mapping
from pathlib import Path


class OomCounter:
    """Counts the OOM kills in a cgroup."""

    def __init__(self, path: Path | None) -> None:
        """`path` has a line `oom_kill N`; None: the cgroup cannot be read and the count stays 0."""
        self._path = path
        self._before = self._read_count()

    def rose_since_last_call(self) -> bool:
        """Whether a process was killed since the last call (or since the counter was created)."""
        count = self._read_count()
        rose, self._before = count > self._before, count
        return rose

    def _read_count(self) -> int:
        if self._path is None:
            return 0
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def own_counter_path(proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The file that counts the OOM kills in this process's cgroup; None if there is none to read.

    In a container the group is often mounted as the root, although /proc names it by its path outside.
    """
    try:
        groups = _groups(proc.read_text())
    except OSError:
        return None
    places = []
    if "memory" in groups:
        v1 = mount / "memory"
        places += [v1 / groups["memory"].lstrip("/") / "memory.oom_control", v1 / "memory.oom_control"]
    if "" in groups:
        for root in (mount, mount / "unified"):
            places += [root / groups[""].lstrip("/") / "memory.events", root / "memory.events"]
    return next((place for place in places if _has_counter(place)), None)


def counter_of(group: Path) -> Path | None:
    """The file that counts a group's OOM kills; None if there is none to read."""
    return next((group / name for name in ("memory.events", "memory.oom_control") if _has_counter(group / name)), None)


def _groups(text: str) -> Mapping[str, str]:
    """Controller (empty for v2) -> path of the group."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _has_counter(path: Path) -> bool:
    try:
        return any(line.startswith("oom_kill ") for line in path.read_text().splitlines())
    except OSError:
        return False
