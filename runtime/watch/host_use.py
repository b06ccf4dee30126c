"""How much CPU, memory, disk and network a job's nodes used, from telemetry. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KIND = "host"
"""That of their lines."""
_MOST = 1e18
"""No figure of a node is higher."""
_MEANS = ("cores", "disk_bytes_per_s", "network_bytes_per_s")


@dataclass
class HostUse:
    """One node's processes together."""

    cores: float = 0.0
    """The mean of cores in use."""
    memory_bytes: float = 0.0
    """The most."""
    disk_bytes_per_s: float = 0.0
    """The mean of what they read from disk and wrote to it."""
    network_bytes_per_s: float = 0.0
    """The mean of what came and went over the node's network interfaces: those of its pod, or of the whole machine."""
    readings: int = 0


class HostUses:
    """Collects the lines of all nodes."""

    def __init__(self) -> None:
        self.by_node: dict[str, HostUse] = {}
        self._newest: dict[str, Mapping[str, Any]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a line of telemetry; those of other kinds, and damaged ones, are skipped."""
        if line.get("kind") != KIND:
            return
        memory, readings, *means = [
            line.get("memory_bytes"), line.get("readings", 1), *(line.get(name, 0) for name in _MEANS)
        ]  # fmt: skip
        if not all(type(number) in (int, float) and 0 <= number < _MOST for number in (memory, readings, *means)):
            return
        use = self.by_node.setdefault(str(line.get("node", "")), HostUse())
        use.readings += int(readings)
        for name, mean in zip(_MEANS, means, strict=True):
            before = getattr(use, name)
            setattr(use, name, before + (float(mean) - before) * int(readings) / max(use.readings, 1))
        use.memory_bytes = max(use.memory_bytes, float(memory))
        self._newest[str(line.get("node", ""))] = line

    def merged(self) -> list[Mapping[str, Any]]:
        """One line for each node, which says the same as all of its lines."""
        return [{**line, **asdict(use)} for line, use in zip(self._newest.values(), self.by_node.values(), strict=True)]
