"""The segments of a node: which slots there are, who reads which, and which files may go.

Invariant: a segment goes only when nobody reads or writes it (or the node leaves). If it holds a state that may be
needed, it goes only after a newer segment of its rank holds the states that replace it.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.node.core.actions import (
    AllocateSlot,
    EndAllocation,
    Location,
    MakeSegment,
    RemoveSegment,
)
from everstep.runtime.checkpoint.node.core.events import AllocationEnded, SegmentMade
from everstep.runtime.checkpoint.node.core.slots import KEPT_SHARDED, SLOTS, Identity, SlotTable, copy_slots
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.checkpoint.shard.sizes import round_to_pages
from everstep.runtime.protocol.rounds import Seat

CERTIFY_SLOTS = 2
"""More slots where states are certified: for the newest certified one, and for one that is compared."""


def copies_of(shard: int) -> int:
    """The number, in place of a local rank, of the segment for copies of that shard of another node."""
    return -1 - shard


class Reader(StrEnum):
    """Who reads a slot."""

    DIGEST = "digest"
    """Its digests are computed."""
    PERSIST = "persist"
    """It is on its way to the store, or waits for that."""
    COPY = "copy"
    """The peer is asked to fetch it."""
    RESTORE = "restore"
    """It is verified before a round starts from it."""
    START = "start"
    """A round starts from it and has not staged enough to do without it."""
    LIST = "list"
    """The master will be told of it."""
    COMPARE = "compare"
    """It is compared with other nodes' replicas."""
    CERTIFIED = "certified"
    """It may be restored; a newer one is not certified yet."""
    PEER = "peer"
    """Another agent reads it."""


@dataclass(eq=False)
class Segment:
    """A segment and what its slots hold."""

    number: int
    local_rank: int
    """Of the worker that writes it; negative for copies of another node's shard (`copies_of`)."""
    slots: int
    """Of its file; 0: a control page only."""
    capacity: int
    """Bytes of a slot."""
    table: SlotTable
    sharded: bool = False
    """It holds a rank's own shard."""
    announced: bool = False
    """A worker knows of it, and writes to no other segment until it announces again."""
    superseded: bool = False
    """A newer segment has what this one was kept for. It goes as soon as it has neither readers nor writers."""
    has_file: bool = False
    error: str = ""
    """Why its remaining slots cannot be allocated."""

    def is_empty(self) -> bool:
        """Nothing worth keeping, and neither readers nor writers."""
        return not self.table.complete() and not self.is_busy()

    def is_busy(self) -> bool:
        """It has readers or writers."""
        return bool(self.table.writing()) or any(self.table[slot].pins for slot in range(len(self.table)))

    def states(self) -> list[Identity]:
        """The complete states in it, the newest first."""
        return [identity for slot in self.table.complete() if (identity := self.table[slot].identity)]

    def location(self, slot: int) -> Location:
        """The bytes of the state in that slot."""
        return Location(self.number, slot, self.table[slot].size)


@dataclass(eq=False)
class Pin:
    """A reader of a slot. Invariant: the slot is not written until the reader ends."""

    segment: Segment
    slot: int
    reader: Reader

    @property
    def location(self) -> Location:
        """The bytes that are read."""
        return self.segment.location(self.slot)

    @property
    def identity(self) -> Identity:
        """The state that is read."""
        identity = self.segment.table[self.slot].identity
        assert identity is not None
        return identity

    @property
    def digest(self) -> str:
        """Its digest; empty until it was computed."""
        return self.segment.table[self.slot].digest

    @property
    def flaw(self) -> str:
        """Why it is not to be used; empty if it is."""
        return self.segment.table[self.slot].flaw


class Segments:
    """All segments of a node. A rank whose state changed its size has a second one for a while: the first keeps what
    can be restored until the second holds a state."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.seat: Seat | None = None
        """Of this round; None before the first."""
        self.pins: dict[Pin, None] = {}
        """All present readers, the earliest first. Invariant: a slot's `pins` count its entries here."""
        self._claimed: dict[object, Segment] = {}
        """The segment of each fetch that waits for a slot. Invariant: such a segment is not removed for another fetch;
        two that want slots of different sizes would remove each other's for ever."""
        self._by_rank: dict[int, list[Segment]] = {}
        """The segments of each local rank, the current one last."""
        self._by_number: dict[int, Segment] = {}
        self._numbers = count(1)

    def all(self) -> list[Segment]:
        """Every segment."""
        return [segment for segments in self._by_rank.values() for segment in segments]

    def of_workers(self) -> list[Segment]:
        """The segments that this node's workers write."""
        return [segment for segment in self.all() if segment.local_rank >= 0]

    def get(self, number: int) -> Segment | None:
        """The segment of that number, if it still exists."""
        return self._by_number.get(number)

    def current(self, local_rank: int) -> Segment | None:
        """The segment that the rank's worker writes."""
        return next(reversed(self._by_rank.get(local_rank, ())), None)

    def find(self, identity: Identity, local_rank: int | None = None) -> tuple[Segment, int] | None:
        """Segment and slot of a complete state."""
        for segment in self.all():
            slot = segment.table.find(identity)
            if slot is not None and local_rank in (None, segment.local_rank):
                return segment, slot
        return None

    def find_shard(self, round: int, iteration: int, shard: int) -> tuple[Segment, int] | None:  # noqa: A002
        """Segment and slot of a complete shard; callers need not know the shard count."""
        for segment in self.all():
            for slot in segment.table.complete():
                identity = segment.table[slot].identity
                if identity and identity[:3] == (round, iteration, shard):
                    return segment, slot
        return None

    def newest(self, local_rank: int, round: int) -> list[Identity]:  # noqa: A002
        """The rank's complete states of that round, the newest first."""
        states = {state for segment in self._by_rank.get(local_rank, ()) for state in segment.states()}
        return sorted((state for state in states if state.round == round), reverse=True)

    def same_or_newer(self, identity: Identity, local_rank: int) -> Identity:
        """That state if it is complete, otherwise the rank's newest of the same round, if that is newer."""
        complete = self.newest(local_rank, identity.round)
        return identity if identity in complete or not complete else max(complete[0], identity)

    # The round

    def begin(self, seat: Seat) -> None:
        """A round begins: invalidate copies of states that it rolls back.

        Otherwise they would stay as the newest ones, and this round's copies would overwrite what it started from.
        """
        self.seat = seat
        for segment in self.all():
            for slot in segment.table.complete() if segment.local_rank < 0 else ():
                identity = segment.table[slot].identity
                if identity and self.is_rolled_back(identity):
                    segment.table.invalidate(slot, "it is rolled back")

    def is_rolled_back(self, identity: Identity) -> bool:
        """Whether an earlier round staged it, after the state that this round started from."""
        if self.seat is None:
            return False
        restore = self.seat.restore
        start = (restore.round, restore.iteration) if restore else (0, 0)
        return start < identity[:2] and identity.round < self.seat.round

    def identify(self, segment: Segment, iteration: int) -> Identity:
        """The state that a worker stages in this round."""
        assert self.seat is not None
        if not segment.sharded:
            return Identity(self.seat.round, iteration)
        return Identity(self.seat.round, iteration, self.seat.first_rank + segment.local_rank, self.seat.world_size)

    # Readers

    def pin(self, segment: Segment, slot: int, reader: Reader) -> Pin:
        """A reader begins."""
        segment.table.pin(slot)
        pin = Pin(segment, slot, reader)
        self.pins[pin] = None
        return pin

    def unpin(self, pin: Pin) -> None:
        """A reader ends."""
        del self.pins[pin]
        pin.segment.table.unpin(pin.slot)

    # Memory

    def get_for_worker(self, local_rank: int, capacity: int, is_sharded: bool = False) -> Segment:
        """The segment that the rank's worker writes from now on, with slots of exactly that capacity (0: a control
        page only). A new one's slots are allocated one after the other.

        A sharded state has one more slot, as its two newest are kept. There must be room for the copies of other nodes'
        shards, too, which come later and are about as large.
        """
        slots = self._slots(is_sharded)
        segment = self._find_fitting(self._by_rank.get(local_rank, [])[-1:], capacity, slots)
        if segment is None:
            if (current := self.current(local_rank)) is not None and current.is_empty():
                self._remove(current)
            copies = self._missing_copy_slots(local_rank) if is_sharded else 0
            segment = self._make(local_rank, capacity, slots, is_sharded, copies)
            self._by_rank.setdefault(local_rank, []).append(segment)
        segment.announced, segment.sharded = True, is_sharded
        return segment

    def claim(
        self, fetch: object, local_rank: int, capacity: int, is_sharded: bool = False, copies: int = 0
    ) -> Segment:
        """A segment to fetch a state of exactly that capacity into: any of the rank's, or a new one behind the one that
        the worker knows. Its slots may not be allocated yet. It is not removed until `release`. Raises SegmentError if
        the segment claimed before cannot be allocated.

        `copies`: how many nodes keep a copy of that shard; 0: it is this node's own."""
        if (earlier_segment := self._claimed.pop(fetch, None)) is not None and earlier_segment.error:
            raise SegmentError(earlier_segment.error)
        slots = copy_slots(copies) if copies else self._slots(is_sharded)
        of_rank = self._by_rank.setdefault(local_rank, [])
        segment = self._find_fitting(of_rank, capacity, slots)
        if segment is None:
            last = of_rank[-1] if of_rank else None
            if last and last.is_empty() and not last.announced and last not in self._claimed.values():
                self._remove(last)
            segment = self._make(local_rank, capacity, slots, is_sharded)
            of_rank.insert(len(of_rank) - (bool(of_rank) and of_rank[-1].announced), segment)
        self._claimed[fetch] = segment
        return segment

    def release(self, fetch: object) -> None:
        """The fetch has its slot, or needs none."""
        self._claimed.pop(fetch, None)

    def _slots(self, is_sharded: bool) -> int:
        certifies = self.seat is not None and self.seat.certifies > 0
        return SLOTS + is_sharded + CERTIFY_SLOTS * certifies

    def _find_fitting(self, segments: list[Segment], capacity: int, slots: int) -> Segment | None:
        """The newest with at least that many slots of that capacity that can be allocated."""
        for segment in reversed(segments):
            if (segment.capacity, len(segment.table)) == (round_to_pages(capacity), slots) and not segment.error:
                segment.superseded = False
                return segment
        return None

    def _make(self, local_rank: int, capacity: int, slots: int, is_sharded: bool, copies: int = 0) -> Segment:
        number, capacity = next(self._numbers), round_to_pages(capacity)
        kept = (KEPT_SHARDED if is_sharded else 1) if local_rank >= 0 else slots - 1
        table = SlotTable(slots, kept, absent=slots if capacity else 0)
        name = f"{local_rank}" if local_rank >= 0 else f"copy{copies_of(local_rank)}"
        name += f".{number}" if self._by_rank.get(local_rank) else ""
        segment = Segment(number, local_rank, slots if capacity else 0, capacity, table, is_sharded)
        self._by_number[number] = segment
        self._tx.act(MakeSegment(number, name, segment.slots, capacity, copies))
        return segment

    @property
    def copy_slots(self) -> int:
        """Slots for copies of other nodes' shards, for each local rank."""
        return copy_slots(len(self.seat.peers)) * self.seat.keeps if self.seat else 0

    def _missing_copy_slots(self, local_rank: int) -> int:
        """Slots not made yet for copies of other nodes' shards: as many shards of each as this node has of its own."""
        ranks = {segment.local_rank for segment in self.of_workers() if segment.sharded} | {local_rank}
        copied_shards = {segment.local_rank for segment in self.all() if segment.local_rank < 0}
        of_shard = copy_slots(len(self.seat.peers)) if self.seat else 0
        return max(self.copy_slots * len(ranks) - of_shard * len(copied_shards), 0)

    def end_making(self, event: SegmentMade) -> None:
        """The segment has its file, so its slots are allocated one after the other; or it cannot be made, and is
        gone."""
        segment = self._by_number.get(event.segment)
        if segment is None:
            return
        if event.error:
            del self._by_number[event.segment]
            self._by_rank[segment.local_rank].remove(segment)
            segment.error = event.error
        else:
            segment.has_file = True
            self._allocate_next(segment)

    def end_allocation(self, event: AllocationEnded) -> None:
        """The next slot is allocated, or no more slots can be. The worker of an announced segment writes to no other
        one, so that it learns of the error when it wants a slot."""
        segment = self._by_number.get(event.segment)
        if segment is None or event.error:
            self._tx.act(EndAllocation(event.segment))
        if segment is None:
            return
        if not event.error:
            segment.table.allocate(segment.table.absent()[0])
            self._allocate_next(segment)
            return
        segment.error = event.error
        if segment.is_empty() and not segment.announced:
            self._remove(segment)

    def _allocate_next(self, segment: Segment) -> None:
        self._tx.act(AllocateSlot(segment.number) if segment.table.absent() else EndAllocation(segment.number))

    # Removal

    def supersede_earlier(self, local_rank: int) -> None:
        """Mark the rank's earlier segments that hold nothing newer than what the current one will keep.

        Of a sharded state the current one must hold two: when this rank has staged the second, every rank has staged
        the first.
        """
        *earlier, current = self._by_rank[local_rank]
        states = current.states()
        if len(states) > current.sharded:
            newest_kept = states[current.sharded]
            for segment in earlier:
                segment.superseded = all(identity[:2] <= newest_kept[:2] for identity in segment.states())

    def supersede_copies(self, round: int) -> None:  # noqa: A002
        """Mark copies of earlier rounds: peers now hold newer ones elsewhere."""
        for segment in self.all():
            states = segment.states()
            past = not states or states[0].round < round
            newer_on_its_way = segment.table.absent() or segment.table.writing()
            if segment.local_rank < 0 and past and not newer_on_its_way:
                segment.superseded = True

    def advance(self) -> bool:
        """Remove superseded segments without readers and writers. Returns whether there was one."""
        segments_to_remove = [segment for segment in self.all() if segment.superseded and not segment.is_busy()]
        for segment in segments_to_remove:
            self._remove(segment)
        return bool(segments_to_remove)

    def _remove(self, segment: Segment) -> None:
        self._by_rank[segment.local_rank].remove(segment)
        del self._by_number[segment.number]
        self._tx.act(RemoveSegment(segment.number))

    def close(self) -> None:
        """Remove every file."""
        self._claimed.clear()
        for segment in self.all():
            self._remove(segment)
