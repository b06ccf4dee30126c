"""How a job's nodes used their devices, from telemetry. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KIND = "devices"


@dataclass
class DeviceUse:
    """One node's devices together."""

    devices: int = 0
    used_bytes: float = 0.0
    """The most."""
    total_bytes: float = 0.0
    busy: float = 0.0
    """The mean share of time in which something ran on them."""
    to_device: float = 0.0
    """Bytes per second from the host: the most of any reading."""
    from_device: float = 0.0
    uncorrected: int = 0
    """Memory errors that ECC could not correct, at the end."""
    lowered: str = ""
    """Why their clocks were lowered at last; empty if they never were."""
    readings: int = 0


class DeviceUses:
    """Collects the lines of all nodes."""

    def __init__(self) -> None:
        self.by_node: dict[str, DeviceUse] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a line of telemetry; those of other kinds, and damaged ones, are skipped."""
        if line.get("kind") != _KIND:
            return
        names = ("devices", "used_bytes", "total_bytes", "busy", "to_device", "from_device", "uncorrected")
        numbers = [line.get(name) for name in names]
        if not all(type(number) in (int, float) for number in numbers):
            return
        devices, used, total, busy, to_device, from_device, uncorrected = map(float, numbers)  # pyright: ignore[reportArgumentType]
        use = self.by_node.setdefault(str(line.get("node", "")), DeviceUse())
        use.readings += 1
        use.devices, use.uncorrected, use.total_bytes = int(devices), int(uncorrected), total
        use.used_bytes = max(use.used_bytes, used)
        use.busy += (busy - use.busy) / use.readings
        use.to_device, use.from_device = max(use.to_device, to_device), max(use.from_device, from_device)
        use.lowered = str(line.get("lowered") or "") or use.lowered
