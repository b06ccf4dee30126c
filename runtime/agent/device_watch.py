"""A node's devices: telemetry of memory, use, copies over the bus, errors; why a worker's device is slowed down.

Never run on a device.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices

EVERY_S = 10.0
_LINE_EVERY = 3
"""So many readings make one line of telemetry."""


@dataclass
class DeviceWatch:
    """Reads the devices until they cannot be read any more."""

    names: Sequence[str]
    """As CUDA_VISIBLE_DEVICES has them; without devices nothing is said."""
    add: Callable[[Mapping[str, float | int | str]], None]
    """Takes a line of telemetry."""
    say: Callable[[str], None]
    readings: Sequence[DeviceReading] = ()
    """The newest."""

    async def run(self) -> None:
        """Read every EVERY_S until cancelled, or until the driver says nothing more, which is said."""
        try:
            nvml = open_nvml() if self.names else None
            for number in count():
                if nvml is None:
                    break
                await asyncio.sleep(EVERY_S)
                self.readings = await asyncio.to_thread(read_devices, nvml, self.names)
                if number % _LINE_EVERY == 0:
                    self.add(line_of(self.readings))
        except NoReadingsError as error:
            self.readings = ()
            self.say(f"telemetry has nothing of this node's devices: {error}")
        await asyncio.Event().wait()

    def lowered(self, local_rank: int) -> str:
        """Why the clocks of that worker's device are lower than they should be; empty: they are not, or nobody knows.

        Local rank N uses the device that is listed as number N.
        """
        return ", ".join(self.readings[local_rank].lowered) if local_rank < len(self.readings) else ""


def line_of(readings: Sequence[DeviceReading]) -> dict[str, float | int | str]:
    """One line for all devices of a node: sums of bytes, bytes per second and errors, the mean use."""
    return {
        "kind": "devices",
        "devices": len(readings),
        "used_bytes": sum(reading.used_bytes for reading in readings),
        "total_bytes": sum(reading.total_bytes for reading in readings),
        "busy": round(sum(reading.busy for reading in readings) / len(readings), 4),
        "to_device": sum(reading.to_device for reading in readings),
        "from_device": sum(reading.from_device for reading in readings),
        "uncorrected": sum(reading.uncorrected or 0 for reading in readings),
        "lowered": ", ".join(dict.fromkeys(why for reading in readings for why in reading.lowered)),
    }
