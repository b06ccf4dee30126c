"""Telemetry about a node's devices: memory, use, copies over the bus, errors. Never run on a device."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from everstep.runtime.system.gpu_readings import DeviceReading, NoReadingsError, open_nvml, read_devices

EVERY_S = 30.0


async def watch_devices(
    names: Sequence[str], add: Callable[[Mapping[str, float | int | str]], None], say: Callable[[str], None]
) -> None:
    """Add a line of telemetry every EVERY_S until cancelled, or until the driver says nothing more, which is said.

    `names`: as CUDA_VISIBLE_DEVICES has them; without devices nothing is said.
    """
    try:
        nvml = open_nvml() if names else None
        while nvml is not None:
            await asyncio.sleep(EVERY_S)
            add(line_of(await asyncio.to_thread(read_devices, nvml, names)))
    except NoReadingsError as error:
        say(f"telemetry has nothing of this node's devices: {error}")
    await asyncio.Event().wait()


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
