"""`everstep.shards`: work that the job's master divides among the workers while they run.

    for shard in everstep.shards(files, epochs=3):
        for line in open(shard.item):
            ...

Each worker gets the next shard when it is done with the one before, so slow workers get fewer. A worker that dies, or
leaves the loop early, leaves its shard to the others. The queue is in the job's journal: a master's successor has it.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from everstep.runtime.data.sampler import Sampler
from everstep.runtime.job.data_queues import NAME, NOTHING
from everstep.runtime.protocol.worker_link import Link, TakenShard, TakeShard


class Shard(NamedTuple):
    """One piece of work."""

    item: Any
    """As it is in `items`; of a number of items, the index."""
    number: int
    """The item's index in the sequence."""
    epoch: int
    """From 0."""


def shards(
    items: Sequence[Any] | int, *, epochs: int = 1, name: str = "data", shuffle: bool = False, seed: int = 0
) -> Iterator[Shard]:
    """Yield shards of `items` (files, ranges, or their number) until the job's workers have done all of them.

    A shard is done when the loop asks for the next one. With a Checkpointer, it counts from the newest saved iteration
    on, or from the next one if none was saved meanwhile: save when a shard is done, not in its middle. If the job
    restores an earlier iteration, the shard comes again. Workers wait until the shards of other workers are done, since
    these may come back. `shuffle` orders shards by (seed, epoch). Every worker must pass the same items; `name`
    distinguishes several queues of one job. Without an agent, ranks take turns. It needs no `everstep.init`.

    Raises ValueError for an invalid name, and LinkError if workers pass different numbers of items.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: use up to 64 letters, digits and . _ -")
    each: Sequence[Any] = range(items) if isinstance(items, int) else items
    if not len(each) or epochs < 1:
        return iter(())
    order = Sampler(len(each), 1, seed, shuffle)
    worker, link = _this_worker()
    positions = _Taker(worker, link, name, len(each) * epochs) if link else _in_turn(len(each) * epochs)
    return _shards(iter(positions), each, order)


class _Saves(Protocol):
    """A Checkpointer."""

    @property
    def saved(self) -> int: ...


class _Worker(Protocol):
    """What is known of this process: its session, or `_Torchless`."""

    shard_requests: int

    @property
    def checkpointer(self) -> _Saves | None: ...
    def beacon(self, name: str) -> None: ...


@dataclass
class _Torchless:
    """A worker whose script uses another framework than torch: it has no session and no checkpointer of ours."""

    link: Link | None
    shard_requests: int = 0
    checkpointer: None = None

    def beacon(self, name: str) -> None:
        """It has none."""


def _this_worker() -> tuple[_Worker, Link | None]:
    """A script that does not use torch may have it: its node has imported it for all. Raises LinkError."""
    if "torch" not in sys.modules:
        return (worker := _torchless()), worker.link
    from everstep.session import current_or_first

    session = current_or_first()
    session.end_rehearsal()  # A shard that a spare took would be missed by others.
    return session, session.context.link


@cache
def _torchless() -> _Torchless:
    return _Torchless(Link.from_environment())


def _shards(positions: Iterator[int], items: Sequence[Any], order: Sampler) -> Iterator[Shard]:
    for position in positions:
        number = int(order.between(position, position + 1)[0])
        yield Shard(items[number], number, position // len(items))


def _in_turn(size: int) -> range:
    return range(int(os.environ.get("RANK", "0")), size, int(os.environ.get("WORLD_SIZE", "1")))


class _Taker:
    """Asks for positions, one after the other."""

    def __init__(self, worker: _Worker, link: Link, name: str, size: int) -> None:
        self._worker, self._link, self._name, self._size = worker, link, name, size

    def __iter__(self) -> Iterator[int]:
        position_done, iteration = NOTHING, 0
        while (position := self._ask(position_done, iteration)) != NOTHING:
            before = self._saved()
            try:
                yield position
            except GeneratorExit:  # The loop was left: what it was doing is for others.
                self._ask(NOTHING, 0, wants=False)
                raise
            position_done, iteration = position, self._counts_with(before)

    def _ask(self, position: int, iteration: int, wants: bool = True) -> int:
        self._worker.beacon("shards")
        number = self._worker.shard_requests = self._worker.shard_requests + 1
        request = TakeShard(number, self._name, self._size, position, iteration, wants)
        return self._link.ask(request, TakenShard).position

    def _counts_with(self, before: int) -> int:
        """The first iteration whose saved state includes the shard that began after `before`; 0: none does."""
        if self._worker.checkpointer is None:
            return 0
        return max(self._saved(), before + 1)

    def _saved(self) -> int:
        return self._worker.checkpointer.saved if self._worker.checkpointer is not None else 0
