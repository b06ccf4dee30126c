"""Copy a state into a slot: the only part of a checkpoint that training waits for.

Few calls for many tensors: grouped copies for each half of the bytes (a fault point stands between them). torch copies
a large tensor by all its threads, a small one by one of them: of small ones each thread gets a group.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch

from runtime import faults
from runtime.checkpoint.layout import Layout

SMALL = 32768
"""Elements below which torch copies a tensor by one thread (at::internal::GRAIN_SIZE)."""
_device = attrgetter("device")


class Threads:
    """As many as torch has, of which the caller's is one."""

    def __init__(self) -> None:
        self.count = torch.get_num_threads()
        self._others = ThreadPoolExecutor(self.count - 1, "everstep-copy") if self.count > 1 else None

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """All of them; they let go of the interpreter's lock while they work. Raises what one of them raises."""
        waiting = deque(tasks)

        def work() -> None:
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                task()

        helpers = min(self.count, len(waiting)) - 1
        others = [self._others.submit(work) for _ in range(helpers)] if self._others else []
        try:
            work()
        finally:
            waiting.clear()
            for other in others:
                other.result()


class Half(NamedTuple):
    """Names of tensors that are copied before the next fault point."""

    large: list[str]
    small: list[list[str]]
    """A group for each thread."""


class Stager:
    """Copies states of one layout into slots; keeps the slots' tensor views, for making them costs more than a copy."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._views: dict[int, dict[str, torch.Tensor]] = {}
        self._threads = Threads()
        self._halves = _halved(layout, self._threads.count)

    def stage(
        self, slot: int, buffer: memoryview, tensors: Mapping[str, torch.Tensor], json: bytes, iteration: int
    ) -> None:
        """Write the whole shard into `buffer`, the bytes of slot number `slot`; `json` is its other part."""
        views = self._views.get(slot)
        if views is None:
            views = {name: place.view(buffer) for name, place in self.layout.places.items()}
            self._views[slot] = views

        def group(names: list[str]) -> None:
            copy([views[name] for name in names], [tensors[name] for name in names])

        faults.point("checkpoint.before_copy", iteration=iteration)
        self.layout.write_state(buffer, json)
        for half, then in zip(self._halves, ("checkpoint.mid_copy", "checkpoint.after_copy"), strict=True):
            group(half.large)
            self._threads.run(partial(group, names) for names in half.small)
            faults.point(then, iteration=iteration)


def copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in one call; between host and device all copies fly at once."""
    if not targets:
        return
    devices = {device for device in (*map(_device, targets), *map(_device, sources)) if device.type != "cpu"}
    with torch.no_grad():
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            targets, sources, non_blocking=bool(devices)
        )
    for device in devices:
        torch.accelerator.synchronize(device)


def _halved(layout: Layout, threads: int) -> tuple[Half, Half]:
    halves = (Half([], [[] for _ in range(threads)]), Half([], [[] for _ in range(threads)]))
    done, every = 0, sum(place.size for place in layout.places.values())
    for name, place in layout.places.items():
        half = halves[2 * done >= every]
        small = place.size < SMALL * place.dtype.itemsize
        (min(half.small, key=len) if small else half.large).append(name)
        done += place.size
    return halves
