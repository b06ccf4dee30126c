"""Detects OOM kills through the counter of this process's own cgroup, v2 or v1.

Sources: the kernel's "Control Group v2", memory.events (`oom_kill`: processes in the group and its children killed by
any OOM killer), and "Memory Resource Controller", memory.oom_control (`oom_kill`, since Linux 4.13).
"""

from collections.abc import Iterable, Mapping
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
        return (_count(self._path) if self._path else None) or 0


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
        places += [mount / "memory" / groups["memory"].lstrip("/"), mount / "memory"]
    if "" in groups:
        for root in (mount, mount / "unified"):
            places += [root / groups[""].lstrip("/"), root]
    return next(filter(None, map(counter_of, places)), None)


def counter_of(group: Path) -> Path | None:
    """The file that counts a group's OOM kills; None if there is none to read."""
    files = (group / "memory.events", group / "memory.oom_control")
    return next((file for file in files if _count(file) is not None), None)


def was_oom_killed(groups: Iterable[Path]) -> bool:
    """Did the kernel kill a process in one of these groups for lack of memory?"""
    return any(_count(file) for file in map(counter_of, groups) if file)


def _groups(text: str) -> Mapping[str, str]:
    """Controller (empty for v2) -> path of the group."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _count(file: Path) -> int | None:
    """None if it has no such line, or cannot be read."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
