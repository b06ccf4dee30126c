"""How a job's nodes used their devices, from telemetry. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KIND = "devices"
_ALWAYS = "devices", "used_bytes", "total_bytes"
_SOMETIMES = "busy", "to_device", "from_device", "uncorrected"
"""What some devices do not tell."""


@dataclass
class DeviceUse:
    """One node's devices together. None: they did not tell."""

    devices: int = 0
    used_bytes: float = 0.0
    """The most."""
    total_bytes: float = 0.0
    busy: float | None = None
    """The mean share of time in which something ran on them."""
    to_device: float | None = None
    """Bytes per second from the host: the most of any reading."""
    from_device: float | None = None
    uncorrected: int | None = None
    """Memory errors that ECC could not correct, at the end."""
    lowered: str | None = None
    """Why their clocks were lowered at last; empty if they never were."""
    readings: int = 0
    """Those that told `busy`."""


class DeviceUses:
    """Collects the lines of all nodes."""

    def __init__(self) -> None:
        self.by_node: dict[str, DeviceUse] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a line of telemetry; those of other kinds, and damaged ones, are skipped."""
        if line.get("kind") != _KIND:
            return
        numbers = {name: line[name] for name in (*_ALWAYS, *_SOMETIMES) if name in line}
        if any(type(number) not in (int, float) for number in numbers.values()) or not numbers.keys() >= {*_ALWAYS}:
            return
        use = self.by_node.setdefault(str(line.get("node", "")), DeviceUse())
        use.devices, use.total_bytes = int(numbers["devices"]), float(numbers["total_bytes"])
        use.used_bytes = max(use.used_bytes, numbers["used_bytes"])
        if "busy" in numbers:
            use.readings += 1
            before = use.busy or 0.0
            use.busy = before + (numbers["busy"] - before) / use.readings
        if "to_device" in numbers:
            use.to_device = max(use.to_device or 0.0, numbers["to_device"])
        if "from_device" in numbers:
            use.from_device = max(use.from_device or 0.0, numbers["from_device"])
        if "uncorrected" in numbers:
            use.uncorrected = int(numbers["uncorrected"])
        if "lowered" in line:
            use.lowered = str(line["lowered"] or "") or use.lowered or ""
