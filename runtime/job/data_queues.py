"""Queues of data shards: which are to do, which a worker is doing, which are done. Pure; `fold` applies the records.

A queue counts positions from 0 to `size` - 1; the workers know which shard of which epoch a position is. A worker asks
for the next position when it is done with the one before: a slow worker asks less often. A round's end gives back what
its workers were doing. Each finished position records the first iteration whose checkpoint contains it. If a later
round restores an older iteration, the position is to do again; 0 means that no checkpoint contains it, and that it
stays done.

Invariant: each position below `cursor` is in exactly one of `returned`, `leases`, `unsettled` and the settled ones,
which are only counted.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from everstep.runtime.protocol.messages import ShardRequest

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint (start, end) of positions."""
NOTHING = -1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Of a queue."""


class Lease(msgspec.Struct, frozen=True):
    """What a worker is doing."""

    round: int
    number: int
    """Of the worker's request that it answers."""
    position: int
    """NOTHING: it is doing nothing."""


class DoneLog:
    """(iteration, position) of what is done, in this order. Immutable to its users; a log and those continued from it
    share their entries, so that 10^6 logs cost as much as one list."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries = [(iteration, position) for iteration, position in entries]
        self._length = len(self._entries)

    def appended(self, iteration: int, position: int) -> "DoneLog":
        """This log and one more entry, as a log of its own."""
        after = DoneLog.__new__(DoneLog)
        # Both logs share one list, which grows here. No log reads beyond its own length, so this one is unchanged. Only
        # the first log continued from this one may share: after a refused event the list has entries of another.
        entries = self._entries if len(self._entries) == self._length else self._entries[: self._length]
        entries.append((iteration, position))
        after._entries, after._length = entries, self._length + 1
        return after

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._entries[: self._length])

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DoneLog) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class DataQueue(msgspec.Struct, frozen=True):
    """One queue of a job."""

    size: int
    """Positions."""
    cursor: int = 0
    """The next position that no worker has had."""
    returned: Ranges = ()
    """Positions that a worker had and that are to do again."""
    leases: dict[str, Lease] = {}
    """By worker: NODE/LOCAL_RANK."""
    settled: int = 0
    """How many are done for good."""
    settled_at: int = 0
    """The highest iteration of a settled position; 0: none depends on a checkpoint."""
    unsettled: DoneLog = msgspec.field(default_factory=DoneLog)
    """What is done, but could be rolled back."""

    @property
    def has_work(self) -> bool:
        """Whether there is a position for another worker."""
        return bool(self.returned) or self.cursor < self.size

    @property
    def done(self) -> int:
        """Positions that are done."""
        return self.settled + len(self.unsettled)

    @property
    def is_over(self) -> bool:
        """Whether all is done."""
        return self.done == self.size


def waiting_key(queue: str) -> str:
    """What requests to this queue wait for: unlike any name of a node or checkpoint."""
    return f"queue {queue}"


def worker_name(request: ShardRequest) -> str:
    """The name of the worker that asks."""
    return f"{request.node}/{request.local_rank}"


def is_duplicate(queue: DataQueue, request: ShardRequest) -> bool:
    """Whether this request, or a later one of its worker, was answered before."""
    lease = queue.leases.get(worker_name(request))
    if lease is None:
        return False
    is_answered = lease.number > request.number or (lease.number == request.number and lease.position != NOTHING)
    return lease.round > request.round or (lease.round == request.round and is_answered)


def answered_position(queue: DataQueue, request: ShardRequest) -> int | None:
    """The position that the request has got, NOTHING if all is done or it wants none; None: it has to wait."""
    lease = queue.leases.get(worker_name(request))
    if lease and (lease.round, lease.number) == (request.round, request.number) and lease.position != NOTHING:
        return lease.position
    return NOTHING if queue.is_over or not request.wants else None


def next_position(queue: DataQueue) -> int:
    """The position to do next. Only if there is work."""
    return queue.returned[0][0] if queue.returned else queue.cursor


def take_position(queue: DataQueue, worker: str, lease: Lease) -> DataQueue:
    """The queue when that worker has begun the next position."""
    leases = {**queue.leases, worker: lease}
    if not queue.returned:
        return replace(queue, leases=leases, cursor=queue.cursor + 1)
    (start, end), *rest = queue.returned
    return replace(queue, leases=leases, returned=((start + 1, end), *rest) if start + 1 < end else tuple(rest))


def finish_position(queue: DataQueue, worker: str, lease: Lease, position: int, iteration: int) -> DataQueue:
    """The queue when that worker has done its position, with `iteration`."""
    queue = replace(queue, leases={**queue.leases, worker: lease})
    if not iteration:
        return replace(queue, settled=queue.settled + 1)
    return replace(queue, unsettled=queue.unsettled.appended(iteration, position))


def with_given_back(queue: DataQueue, worker: str, lease: Lease, position: int) -> DataQueue:
    """The queue when that worker will not do its position."""
    return replace(_return_positions(queue, [position]), leases={**queue.leases, worker: lease})


def without_node(queue: DataQueue, node: str) -> DataQueue:
    """The queue when that node's workers have ended: they do nothing any more."""
    ended_workers = [name for name in queue.leases if name.rpartition("/")[0] == node]
    queue = _return_positions(queue, [queue.leases[name].position for name in ended_workers])
    return replace(queue, leases={name: lease for name, lease in queue.leases.items() if name not in ended_workers})


def in_next_round(queue: DataQueue, restored_iteration: int) -> DataQueue:
    """The queue when another round begins from iteration `restored_iteration` (0: from nothing): what was being done,
    and what was done later than that, is to do."""
    if restored_iteration < queue.settled_at:
        return DataQueue(queue.size)
    undone = [position for iteration, position in queue.unsettled if iteration > restored_iteration]
    if undone:
        queue = replace(queue, unsettled=DoneLog(entry for entry in queue.unsettled if entry[0] <= restored_iteration))
    interrupted = [lease.position for lease in queue.leases.values()]
    return replace(_return_positions(queue, undone + interrupted), leases={})


def settle_positions(queue: DataQueue, oldest: int) -> DataQueue:
    """The queue when no round can go back behind iteration `oldest`."""
    settled = [iteration for iteration, _ in queue.unsettled if iteration <= oldest]
    if not settled:
        return queue
    remaining = DoneLog(entry for entry in queue.unsettled if entry[0] > oldest)
    at = max(queue.settled_at, *settled)
    return replace(queue, unsettled=remaining, settled=queue.settled + len(settled), settled_at=at)


def _return_positions(queue: DataQueue, positions: list[int]) -> DataQueue:
    spans = [(position, position + 1) for position in positions if position != NOTHING]
    if not spans:
        return queue
    ranges: list[tuple[int, int]] = []
    for start, end in sorted([*queue.returned, *spans]):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return replace(queue, returned=tuple(ranges))
