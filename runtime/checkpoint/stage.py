"""Copy a state into a slot: the only part of a checkpoint that training waits for.

Few calls for many tensors: one grouped copy for each half of the bytes (a fault point stands between them).
"""

from collections.abc import Mapping
from typing import Any

import torch

from runtime import faults
from runtime.checkpoint.layout import Layout


class Stager:
    """Copies states of one layout into slots; keeps the slots' tensor views, for making them costs more than a copy."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._views: dict[int, dict[str, torch.Tensor]] = {}
        self._halves = _halved(layout)

    def stage(
        self, slot: int, buffer: memoryview, tensors: Mapping[str, torch.Tensor], json: Any, iteration: int
    ) -> None:
        """Write the whole shard into `buffer`, the bytes of slot number `slot`."""
        views = self._views.get(slot)
        if views is None:
            views = {name: place.view(buffer) for name, place in self.layout.places.items()}
            self._views[slot] = views
        faults.point("checkpoint.before_copy", iteration=iteration)
        self.layout.write_state(buffer, json)
        copy([views[name] for name in self._halves[0]], [tensors[name] for name in self._halves[0]])
        faults.point("checkpoint.mid_copy", iteration=iteration)
        copy([views[name] for name in self._halves[1]], [tensors[name] for name in self._halves[1]])
        faults.point("checkpoint.after_copy", iteration=iteration)


def copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in one call; between host and device all copies fly at once."""
    if not targets:
        return
    devices = {tensor.device for tensor in (*targets, *sources) if tensor.device.type != "cpu"}
    with torch.no_grad():
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            targets, sources, non_blocking=bool(devices)
        )
    for device in devices:
        torch.accelerator.synchronize(device)


def _halved(layout: Layout) -> tuple[list[str], list[str]]:
    halves: tuple[list[str], list[str]] = ([], [])
    done, half = 0, sum(place.size for place in layout.places.values()) // 2
    for name, place in layout.places.items():
        halves[done >= half].append(name)
        done += place.size
    return halves
