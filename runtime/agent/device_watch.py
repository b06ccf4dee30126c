"""A node's devices: telemetry of memory, use, copies over the bus, errors; why a worker's device is slowed down.

Never run on a device.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import TypeVar

from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices

T = TypeVar("T")

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
        """Read every EVERY_S until cancelled, or until the driver says nothing more, which is said.

        The driver may hang: it is asked in a thread for which nobody waits at the end (an agent ends by os._exit).
        """
        thread = ThreadPoolExecutor(1, "everstep-nvml")
        ask = partial(asyncio.get_running_loop().run_in_executor, thread)
        try:
            nvml = await ask(open_nvml) if self.names else None
            for number in count():
                if nvml is None:
                    break
                await asyncio.sleep(EVERY_S)
                self.readings = await ask(read_devices, nvml, self.names)
                if number % _LINE_EVERY == 0:
                    self.add(line_of(self.readings))
        except NoReadingsError as error:
            self.readings = ()
            self.say(f"telemetry has nothing of this node's devices: {error}")
        finally:
            thread.shutdown(wait=False)
        await asyncio.Event().wait()

    def lowered(self, local_rank: int) -> str:
        """Why the clocks of that worker's device are lower than they should be; empty: they are not, or nobody knows.

        Local rank N uses the device that is listed as number N.
        """
        return ", ".join(self.readings[local_rank].lowered or ()) if local_rank < len(self.readings) else ""


def line_of(readings: Sequence[DeviceReading]) -> dict[str, float | int | str]:
    """One line for all devices of a node: sums of bytes, bytes per second and errors, the mean use. What no device
    tells is left out."""
    busy = _known_values(reading.busy for reading in readings)
    lowered = _known_values(reading.lowered for reading in readings)
    sums = {
        "to_device": _known_values(reading.to_device for reading in readings),
        "from_device": _known_values(reading.from_device for reading in readings),
        "uncorrected": _known_values(reading.uncorrected for reading in readings),
    }
    return {
        "kind": "devices",
        "devices": len(readings),
        "used_bytes": sum(reading.used_bytes for reading in readings),
        "total_bytes": sum(reading.total_bytes for reading in readings),
        **({"busy": round(sum(busy) / len(busy), 4)} if busy else {}),
        **{name: sum(values) for name, values in sums.items() if values},
        **({"lowered": ", ".join(dict.fromkeys(chain.from_iterable(lowered)))} if lowered else {}),
    }


def _known_values(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]
