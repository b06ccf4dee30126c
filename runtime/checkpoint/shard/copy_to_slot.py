"""Copy a state into a slot: the only part of a checkpoint that training waits for.

Few calls copy many tensors. They are grouped into two halves of the bytes, with a fault point between them. torch
copies a large tensor by all its threads, a small one by one thread. So small tensors are copied as rows (see
`batched_copy`), and those that cannot be are divided among threads.
"""

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

import torch

from everstep.runtime import faults
from everstep.runtime.checkpoint.shard.batched_copy import SMALL_ELEMENTS, Rows, group_rows
from everstep.runtime.checkpoint.shard.layout import Layout
from everstep.runtime.checkpoint.state.flatten import FlatState

_device = attrgetter("device")


class CopyThreads:
    """Some threads, including the caller's: as many as torch has unless `count` says how many."""

    def __init__(self, count: int = 0) -> None:
        self.count = count or torch.get_num_threads()
        self._others = ThreadPoolExecutor(self.count - 1, "everstep-copy") if self.count > 1 else None

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Run all tasks, which release the interpreter lock while they work. Raises the error of a task."""
        waiting = deque(tasks)

        def work() -> None:
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                task()

        helpers = min(self.count, len(waiting)) - 1
        futures = [self._others.submit(work) for _ in range(helpers)] if self._others else []
        try:
            work()
        finally:
            waiting.clear()
            for future in futures:
                future.result()


class Half(NamedTuple):
    """What is copied before the next fault point."""

    rows: list[Rows]
    large: list[str]
    """Names of tensors."""
    small: list[list[str]]
    """A group of names for each thread."""


class Stager:
    """Copies states of one layout into slots. Keeps the slots' tensor views, as making them costs more than a copy."""

    def __init__(self, layout: Layout, tree: FlatState) -> None:
        """`tree` is the state that was laid out."""
        self.layout = layout
        self._views: dict[int, dict[str, torch.Tensor]] = {}
        self._threads = CopyThreads()
        self._arrange(tree)

    def knows(self, tree: FlatState) -> bool:
        """Are its tensors those of the last state?"""
        return tree.traversal is self._walk

    def fits(self, tree: FlatState) -> bool:
        """Does that state have this layout?"""
        return self.knows(tree) or self.layout.matches(tree.tensors)

    def copy_order(self) -> tuple[list[Rows], list[str]]:
        """The rows, in the shard's order, and the names of all other tensors."""
        rows = [rows for half in self._halves for rows in half.rows]
        return rows, [name for half in self._halves for name in chain(half.large, *half.small)]

    def stage(self, slot: int, buffer: memoryview, tree: FlatState, json: bytes, iteration: int) -> None:
        """Write the whole shard into `buffer`, the bytes of slot number `slot`; `json` is its JSON part."""
        if not self.knows(tree):
            self._arrange(tree)
        views = self._views.get(slot)
        if views is None:
            views = self._views[slot] = {name: self.layout.tensors[name].view(buffer) for name in self.copy_order()[1]}

        def group(names: list[str]) -> None:
            copy_tensors([views[name] for name in names], [tree.tensors[name] for name in names])

        # It trains on a stream of the caller's, for which those of the threads do not wait.
        for device in self._devices:
            torch.accelerator.synchronize(device)
        faults.point("checkpoint.before_copy", iteration=iteration)
        self.layout.write_state(buffer, json)
        for half, then in zip(self._halves, ("checkpoint.mid_copy", "checkpoint.after_copy"), strict=True):
            for rows in half.rows:
                rows.copy_to(buffer)
            group(half.large)
            self._threads.run(partial(group, names) for names in half.small if names)
            faults.point(then, iteration=iteration)

    def _arrange(self, tree: FlatState) -> None:
        """Plan the copies. The plan holds for all states of the same traversal."""
        self._walk = tree.traversal
        self._devices = _accelerators(tree.tensors.values())
        self._halves = _split_halves(self.layout, tree.tensors, self._threads.count)
        self._views.clear()


def copy_tensors(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in one call. Copies between host and device overlap.

    A source in a slot that is registered with CUDA is first copied to other memory: it may lie in two registered parts,
    which CUDA refuses (see `cuda_copies`). Sources of a device go to targets there by `DeviceCopies`.
    """
    if not targets:
        return
    devices = _accelerators([*targets, *sources])
    with torch.no_grad():
        if devices:  # torch would conjugate and negate on the host, without a wait for the bytes.
            sources = [source.resolve_conj().resolve_neg() for source in sources]
            sources = [source.clone() if source.is_cpu and source.is_pinned() else source for source in sources]
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            targets, sources, non_blocking=bool(devices)
        )
    for device in devices:
        torch.accelerator.synchronize(device)


def _accelerators(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    return {device for device in map(_device, tensors) if device.type != "cpu"}


def _split_halves(layout: Layout, tensors: Mapping[str, torch.Tensor], threads: int) -> tuple[Half, Half]:
    names = list(layout.tensors)
    ends = list(accumulate(place.size for place in layout.tensors.values()))
    middle = bisect(ends, ends[-1] // 2) if ends else 0
    return _plan_half(layout, names[:middle], tensors, threads), _plan_half(layout, names[middle:], tensors, threads)


def _plan_half(layout: Layout, names: list[str], tensors: Mapping[str, torch.Tensor], threads: int) -> Half:
    rows, others = group_rows([layout.tensors[name] for name in names], [tensors[name] for name in names])
    half = Half(rows, [], [[] for _ in range(threads)])
    for name in (names[number] for number in others):
        small = tensors[name].numel() < SMALL_ELEMENTS
        (min(half.small, key=len) if small else half.large).append(name)
    return half
