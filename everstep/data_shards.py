"""`everstep.shards`: work that the job's master divides among the workers while they run.

    for shard in everstep.shards(files, epochs=3):
        for line in open(shard.item):
            ...

Each worker gets the next shard when it is done with the one before, so slow workers get fewer. A worker that dies, or
leaves the loop early, leaves its shard to the others. The queue is in the job's journal: a master's successor has it.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from everstep.runtime.data.sampler import Sampler
from everstep.runtime.job.data_queues import NAME, NOTHING
from everstep.runtime.protocol.worker_link import Link, TakenShard, TakeShard
from everstep.session import Session, current


class Shard(NamedTuple):
    """One piece of work."""

    item: Any
    number: int
    """The item's index in the sequence."""
    epoch: int
    """From 0."""


def shards(
    items: Sequence[Any] | int, *, epochs: int = 1, name: str = "data", shuffle: bool = False, seed: int = 0
) -> Iterator[Shard]:
    """Yield shards of `items` (files, ranges, or their number) until the job's workers have done all of them.

    A shard is done when the loop asks for the next one. With a Checkpointer it counts with the newest saved iteration,
    or the next one if none was saved meanwhile: save when a shard is done, not in its middle. If the job goes back
    behind that iteration, the shard comes again. Workers wait for the end of shards that others are doing, as these may
    come back. `shuffle` orders them by (seed, epoch). Every worker must give the same items; `name` tells two queues of
    one job apart. Without an agent, ranks take turns.

    Raises ValueError for an invalid name; LinkError if workers pass different numbers of items.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: use up to 64 letters, digits and . _ -")
    each: Sequence[Any] = range(items) if isinstance(items, int) else items
    if not len(each) or epochs < 1:
        return iter(())
    order = Sampler(len(each), 1, seed, shuffle)
    session = current("shards")
    session.end_rehearsal()  # A shard that a spare took would be missed by others.
    positions = _Taker(session, session.context.link, name, len(each) * epochs) if session.context.link else _in_turn(
        len(each) * epochs
    )  # fmt: skip
    return _shards(iter(positions), each, order)


def _shards(positions: Iterator[int], items: Sequence[Any], order: Sampler) -> Iterator[Shard]:
    for position in positions:
        number = int(order.between(position, position + 1)[0])
        yield Shard(items[number], number, position // len(items))


def _in_turn(size: int) -> range:
    return range(int(os.environ.get("RANK", "0")), size, int(os.environ.get("WORLD_SIZE", "1")))


class _Taker:
    """Asks for positions, one after the other."""

    def __init__(self, session: Session, link: Link, name: str, size: int) -> None:
        self._session, self._link, self._name, self._size = session, link, name, size

    def __iter__(self) -> Iterator[int]:
        done, iteration = NOTHING, 0
        while (position := self._ask(done, iteration)) != NOTHING:
            before = self._session.iteration
            try:
                yield position
            except GeneratorExit:  # The loop was left: what it was doing is for others.
                self._ask(NOTHING, 0, wants=False)
                raise
            done, iteration = position, self._counts_with(before)

    def _ask(self, done: int, iteration: int, wants: bool = True) -> int:
        self._session.beacon("shards")
        number = self._session.shard_requests = self._session.shard_requests + 1
        request = TakeShard(number, self._name, self._size, done, iteration, wants)
        return self._link.ask(request, TakenShard).position

    def _counts_with(self, before: int) -> int:
        """The iteration whose saved state includes the shard that began after iteration `before`; 0: none does."""
        if self._session.checkpointer is None:
            return 0
        return self._session.iteration if self._session.iteration > before else before + 1
