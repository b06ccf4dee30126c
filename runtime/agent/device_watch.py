"""Telemetry about a node's devices: memory, use, copies over the bus, errors. Never run on a device."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices

EVERY_S = 30.0


@dataclass
class DeviceWatch:
    """The devices of one node; `run` keeps reading them."""

    names: Sequence[str]
    """As CUDA_VISIBLE_DEVICES has them; without devices nothing is said."""
    add: Callable[[Mapping[str, float | int | str]], None]
    say: Callable[[str], None]
    lowered: str = ""
    """Why clocks of the devices were lowered at the last reading; empty if they were not."""

    async def run(self) -> None:
        """Add a line of telemetry every EVERY_S, until cancelled. That the driver says nothing more is said once."""
        try:
            nvml = open_nvml() if self.names else None
            while nvml is not None:
                await asyncio.sleep(EVERY_S)
                line = line_of(await asyncio.to_thread(read_devices, nvml, self.names))
                self.lowered = str(line["lowered"])
                self.add(line)
        except NoReadingsError as error:
            self.lowered = ""
            self.say(f"telemetry has nothing of this node's devices: {error}")
        await asyncio.Event().wait()


def line_of(readings: Sequence[DeviceReading]) -> dict[str, float | int | str]:
    """One line for all devices of a node: sums of bytes, bytes per second and errors, the mean use."""
    return {
        "kind": "devices",
        "devices": len(readings),
        "used_bytes": sum(one.used_bytes for one in readings),
        "total_bytes": sum(one.total_bytes for one in readings),
        "busy": round(sum(one.busy for one in readings) / len(readings), 4),
        "to_device": sum(one.to_device for one in readings),
        "from_device": sum(one.from_device for one in readings),
        "uncorrected": sum(one.uncorrected or 0 for one in readings),
        "lowered": ", ".join(dict.fromkeys(why for one in readings for why in one.lowered)),
    }
