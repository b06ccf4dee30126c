"""How much CPU, memory and disk a node's processes use, and its network, as telemetry."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from everstep.runtime.watch.host_use import KIND
from everstep.runtime.watch.process_state import FamilyUse, family_use, network_bytes

FIRST_S = 10.0
EVERY_S = 30.0


@dataclass
class HostWatch:
    """Measures this node until it is cancelled."""

    pid: int
    """The agent's own: every other process of the node descends from it."""
    add: Callable[[Mapping[str, float | int | str]], None]
    """Takes a line of telemetry."""

    async def run(self) -> None:
        """One line soon, then one every EVERY_S."""
        readings = deque([(monotonic(), await asyncio.to_thread(family_use, self.pid))], maxlen=2)
        wait_s, network = FIRST_S, network_bytes()
        while True:
            await asyncio.sleep(wait_s)
            now, after = monotonic(), await asyncio.to_thread(family_use, self.pid)
            # One that ran while a process was waited for may have missed it: then the one before it is higher.
            began_at, before = max(readings, key=lambda reading: (reading[1].cpu_s, reading[0]))
            network_before, network = network, network_bytes()
            self.add(line_of(before, after, now - began_at, (network - network_before) / (now - readings[-1][0])))
            readings.append((now, after))
            wait_s = EVERY_S


def line_of(
    before: FamilyUse, after: FamilyUse, seconds: float, network_bytes_per_s: float
) -> dict[str, float | int | str]:
    """One line: cores and disk in use since `before`, the network, and the memory now."""
    cores = max(after.cpu_s - before.cpu_s, 0.0) / seconds
    disk = max(after.disk_bytes - before.disk_bytes, 0) / seconds
    return {
        "kind": KIND,
        "cores": round(cores, 2),
        "memory_bytes": after.memory_bytes,
        "disk_bytes_per_s": round(disk),
        "network_bytes_per_s": round(max(network_bytes_per_s, 0.0)),
    }
