"""The segments of a node: whose slots there are, who reads which, and which files may go. Pure: no IO, no lock.

Invariant: a segment goes only when nobody writes or reads it (or the node leaves), and, if it holds a whole state that
may be needed, only after a newer segment of its rank holds what takes its place.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.node.core.events import (
    Action,
    Allocate,
    EndAllocation,
    MakeSegment,
    RemoveSegment,
    Seal,
    Sealed,
    Warn,
    Where,
)
from everstep.runtime.checkpoint.node.core.slots import KEPT_SHARDED, Identity, SlotState, SlotTable
from everstep.runtime.checkpoint.shard.sizes import round_to_pages

COPY_SLOTS = 2
"""Of each shard that is copied from another node: the last one whole while the next one comes."""
LEAVING = "this node is leaving"


def copies_of(shard: int) -> int:
    """The number, in place of a local rank, of the segment with copies of that shard of another node."""
    return -1 - shard


class Reader(StrEnum):
    """Who reads a slot."""

    SEAL = "seal"
    """Digests are computed."""
    PERSIST = "persist"
    """It goes, or will go, to the store."""
    COPY = "copy"
    """The peer is asked to fetch it."""
    RESTORE = "restore"
    """It is checked before a round begins from it."""
    START = "start"
    """A round begins from it, and has not staged enough to do without."""
    LIST = "list"
    """A master will be told of it."""
    PEER = "peer"
    """Another agent reads it."""


@dataclass(eq=False)
class Segment:
    """One segment and what its slots are worth."""

    number: int
    local_rank: int
    """Whose worker writes it; negative for copies of another node's shard (`copies_of`)."""
    slots: int
    """Of its file; 0: it has a control page only."""
    capacity: int
    """Bytes of a slot."""
    table: SlotTable
    sharded: bool = False
    """Is it some rank's own shard?"""
    told: bool = False
    """Does a worker know of it? It writes to no other one until it is told so."""
    outlived: bool = False
    """A newer segment has what this one was kept for: it goes as soon as nobody is at work with it."""
    broken: str = ""
    """Why its other slots cannot have their memory."""
    made: bool = False
    """Has it its file?"""

    def idle(self) -> bool:
        """Nothing worth keeping, nobody at work."""
        return not self.table.whole() and not self.busy()

    def busy(self) -> bool:
        """Somebody writes to it or reads it."""
        return bool(self.table.writing()) or any(self.table[slot].pins for slot in range(len(self.table)))

    def states(self) -> list[Identity]:
        """The whole states in it, the newest first."""
        return [identity for slot in self.table.whole() if (identity := self.table[slot].identity)]

    def where(self, slot: int) -> Where:
        """The whole state in that slot."""
        return Where(self.number, slot, self.table[slot].size)


@dataclass(eq=False)
class Pin:
    """A reader of a whole slot, which is not written until the reader ends."""

    segment: Segment
    slot: int
    reader: Reader

    @property
    def where(self) -> Where:
        """What is read."""
        return self.segment.where(self.slot)

    @property
    def identity(self) -> Identity:
        """Which state that is."""
        identity = self.segment.table[self.slot].identity
        assert identity is not None
        return identity

    @property
    def digest(self) -> str:
        """Of it; empty until it was computed."""
        return self.segment.table[self.slot].digest

    @property
    def flaw(self) -> str:
        """What proved wrong with it."""
        return self.segment.table[self.slot].flaw


@dataclass
class Segments:
    """All segments of a node. A rank has a second one for a while when its state changed its size: the first keeps what
    can be restored until the second holds a whole state."""

    slots: int
    act: Callable[[Action], None]
    """Decide so."""
    works: "count[int]" = field(default_factory=count)
    """Numbers of works."""
    pins: dict[Pin, None] = field(default_factory=dict)
    """Who reads what now, the earliest first. Invariant: a slot's `pins` are as many as there are of it here."""
    _wanted: dict[object, Segment] = field(default_factory=dict)
    """What each fetch waits for that has no slot yet. Invariant: it goes for no other fetch: two that want slots of
    different sizes would remove each other's for ever."""
    _of_rank: dict[int, list[Segment]] = field(default_factory=dict)
    _numbered: dict[int, Segment] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _seal: tuple[int, Pin] | None = None
    """The work that computes digests, and of what: one at a time."""
    _round: int = 0
    _start: tuple[int, int] = (0, 0)

    def all(self) -> list[Segment]:
        """Every segment."""
        return [segment for every in self._of_rank.values() for segment in every]

    def of_workers(self) -> list[Segment]:
        """Those that this node's workers write."""
        return [segment for segment in self.all() if segment.local_rank >= 0]

    def numbered(self, number: int) -> Segment | None:
        """The segment of that number, if it is there."""
        return self._numbered.get(number)

    def current(self, local_rank: int) -> Segment | None:
        """The segment that the rank writes to."""
        return next(reversed(self._of_rank.get(local_rank, ())), None)

    def find(self, identity: Identity, local_rank: int | None = None) -> tuple[Segment, int] | None:
        """Where a state lies whole."""
        for segment in self.all():
            slot = segment.table.find(identity)
            if slot is not None and local_rank in (None, segment.local_rank):
                return segment, slot
        return None

    def find_shard(self, round: int, iteration: int, shard: int) -> tuple[Segment, int] | None:  # noqa: A002
        """Where a shard lies whole; callers need not know the shard count."""
        for segment in self.all():
            for slot in segment.table.whole():
                identity = segment.table[slot].identity
                if identity and identity[:3] == (round, iteration, shard):
                    return segment, slot
        return None

    def newest(self, local_rank: int, round: int) -> list[Identity]:  # noqa: A002
        """The rank's whole states of that round, the newest first."""
        every = self._of_rank.get(local_rank, ())
        found = [segment.table[slot].identity for segment in every for slot in segment.table.whole()]
        return sorted({one for one in found if one and one.round == round}, reverse=True)

    def or_newer(self, identity: Identity, local_rank: int) -> Identity:
        """That state if it lies whole, else the rank's newest of the same round that came after it, if there is one."""
        whole = self.newest(local_rank, identity.round)
        return identity if identity in whole or not whole else max(whole[0], identity)

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

    def seal_next(self) -> bool:
        """Have digests computed: first of what somebody reads, then of each segment's newest state, so that damage
        after the stage can be found. Was there any to do?"""
        if self._seal is not None:
            return False
        wanted = [(pin.segment, pin.slot) for pin in self.pins]
        newest = ((segment, segment.table.newest()) for segment in self.all())
        wanted += [(segment, slot) for segment, slot in newest if slot is not None]
        for segment, slot in wanted:
            facts = segment.table[slot]
            if facts.state is SlotState.WHOLE and not facts.digest:
                pin = self.pin(segment, slot, Reader.SEAL)
                self._seal = next(self.works), pin
                self.act(Seal(self._seal[0], pin.where))
                return True
        return False

    def sealed(self, event: Sealed) -> None:
        """A digest is known, or the bytes are no shard."""
        assert self._seal is not None
        assert self._seal[0] == event.work
        pin, self._seal = self._seal[1], None
        if event.flaw:
            iteration, round_ = pin.identity.iteration, pin.identity.round
            self.act(Warn(f"iteration {iteration} of round {round_} is damaged in memory: {event.flaw}"))
            pin.segment.table.spoil(pin.slot, event.flaw)
        elif not pin.flaw:
            pin.segment.table.digested(pin.slot, event.digest)
        self.unpin(pin)

    # Memory

    def for_worker(self, local_rank: int, capacity: int, sharded: bool = False, peer: bool = False) -> Segment:
        """The segment that the rank's worker writes to from now on, with slots of exactly that capacity (0: a control
        page only). One more slot for a sharded state, of which the two newest are kept. With a `peer` there must be
        room for copies of its shard, too, which come later and are about as large.

        Of a new one the slots get their memory one after the other.
        """
        segment = self._fitting(self._of_rank.get(local_rank, [])[-1:], capacity, self.slots + sharded)
        if segment is None:
            if (current := self.current(local_rank)) is not None and current.idle():
                self._remove(current)
            segment = self._make(local_rank, capacity, self.slots + sharded, sharded, peer)
            self._of_rank.setdefault(local_rank, []).append(segment)
        segment.told, segment.sharded = True, sharded
        return segment

    def to_fetch_into(self, fetch: object, local_rank: int, capacity: int, sharded: bool = False) -> Segment:
        """A segment to fetch a state into that fills `capacity`: any of the rank's, or a new one behind that which the
        worker was told of. Its first slots may have their memory, or will. It stays until `want_no_more`. Raises
        SegmentError when the one that it waited for gets no memory."""
        if (wanted := self._wanted.pop(fetch, None)) is not None and wanted.broken:
            raise SegmentError(wanted.broken)
        slots = COPY_SLOTS if local_rank < 0 else self.slots + sharded
        every = self._of_rank.setdefault(local_rank, [])
        segment = self._fitting(every, capacity, slots)
        if segment is None:
            if every and every[-1].idle() and not every[-1].told and every[-1] not in self._wanted.values():
                self._remove(every[-1])
            segment = self._make(local_rank, capacity, slots, sharded)
            every.insert(len(every) - (bool(every) and every[-1].told), segment)
        self._wanted[fetch] = segment
        return segment

    def want_no_more(self, fetch: object) -> None:
        """It has its slot, or needs none."""
        self._wanted.pop(fetch, None)

    def _fitting(self, among: list[Segment], capacity: int, slots: int) -> Segment | None:
        """The newest with so many slots of that capacity; none that cannot get memory for them."""
        same = (one for one in reversed(among) if one.capacity == round_to_pages(capacity) and len(one.table) == slots)
        segment = next((one for one in same if not one.broken), None)
        if segment is not None:
            segment.outlived = False
        return segment

    def _make(self, local_rank: int, capacity: int, count_: int, sharded: bool, peer: bool = False) -> Segment:
        """A new one."""
        slots = count_ if capacity else 0
        copies = self._copies_to_come(local_rank) if sharded and peer else 0
        number = next(self._numbers)
        suffix = f".{number}" if self._of_rank.get(local_rank) else ""
        name = f"{local_rank}" if local_rank >= 0 else f"copy{copies_of(local_rank)}"
        table = SlotTable(count_, KEPT_SHARDED if sharded else 1, slots)
        segment = Segment(number, local_rank, slots, round_to_pages(capacity), table, sharded)
        self._numbered[number] = segment
        self.act(MakeSegment(number, name + suffix, slots, round_to_pages(capacity), copies))
        return segment

    def _copies_to_come(self, local_rank: int) -> int:
        """Slots for copies of the peer's shards, as many as this node has of its own, that are not made yet."""
        ranks = {one.local_rank for one in self.of_workers() if one.sharded} | {local_rank}
        copied = {one.local_rank for one in self.all() if one.local_rank < 0}
        return COPY_SLOTS * max(len(ranks) - len(copied), 0)

    def made(self, number: int) -> None:
        """It has its file: its slots get their memory one after the other."""
        if segment := self._numbered.get(number):
            segment.made = True
            self._allocate(segment)

    def not_made(self, number: int, why: str) -> None:
        """It has none, and is not there any more."""
        if segment := self._numbered.pop(number, None):
            segment.broken = why
            self._of_rank[segment.local_rank].remove(segment)

    def allocated(self, number: int, slot: int) -> None:
        """A slot has its memory."""
        if segment := self._numbered.get(number):
            segment.table.allocated(slot)
            self._allocate(segment)
        else:  # It went meanwhile.
            self.act(EndAllocation(number))

    def not_allocated(self, number: int, why: str) -> None:
        """It gets no more memory. Its worker writes to no other one, so that it is told when it wants to."""
        self.act(EndAllocation(number))
        if segment := self._numbered.get(number):
            segment.broken = why
            if segment.idle() and not segment.told:
                self._remove(segment)

    def _allocate(self, segment: Segment) -> None:
        self.act(Allocate(segment.number) if segment.table.absent() else EndAllocation(segment.number))

    # What goes

    def outlive_earlier(self, local_rank: int) -> None:
        """If the current segment holds a whole state, earlier ones of nothing newer are not needed any more.

        Of a sharded state it must hold two: when this rank has staged the second, every rank has staged the first.
        """
        *earlier, current = self._of_rank[local_rank]
        whole = current.states()
        if len(whole) > current.sharded:
            kept = whole[current.sharded]
            for segment in earlier:
                segment.outlived = all(identity[:2] <= kept[:2] for identity in segment.states())

    def outlive_copies(self, round: int) -> None:  # noqa: A002
        """Copies of rounds before that one are not needed any more: newer ones lie somewhere else now."""
        for segment in self.all():
            newest = segment.table.newest()
            identity = segment.table[newest].identity if newest is not None else None
            past = identity is None or identity.round < round
            coming = segment.table.absent() or segment.table.writing()  # Newer ones.
            if segment.local_rank < 0 and past and not coming:
                segment.outlived = True

    def remove_outlived(self) -> bool:
        """Remove what nobody needs and nobody is at work with; was there any?"""
        gone = [segment for segment in self.all() if segment.outlived and not segment.busy()]
        for segment in gone:
            self._remove(segment)
        return bool(gone)

    def _remove(self, segment: Segment) -> None:
        self._of_rank[segment.local_rank].remove(segment)
        del self._numbered[segment.number]
        self.act(RemoveSegment(segment.number))

    def begin(self, round: int, start: tuple[int, int]) -> None:  # noqa: A002
        """A round begins from that (round, iteration): copies of what was staged after it are let go.

        Else they would stay as the newest ones, and this round's would take the place of what it began from.
        """
        self._round, self._start = round, start
        for segment in self.all():
            for slot in segment.table.whole() if segment.local_rank < 0 else ():
                identity = segment.table[slot].identity
                if identity and self.undone(identity):
                    segment.table.spoil(slot, "it is rolled back")

    def undone(self, identity: Identity) -> bool:
        """Was it staged after what the running round began from, and before the round?"""
        return self._start < identity[:2] and identity.round < self._round

    def close(self) -> None:
        """Every file goes."""
        for segment in self.all():
            self._remove(segment)
