"""The segments of a node: files and slots by local rank. The keeper holds its lock around every call."""

import hashlib
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.node.slots import KEPT_SHARDED, Identity, SlotTable
from everstep.runtime.checkpoint.shard.segment import NewSegment, SegmentFile, require_room, round_to_pages

COPY_SLOTS = 2
"""Of each shard that is copied from another node: the last one whole while the next one comes."""


def segment_prefix(job: str, node: str) -> str:
    """What the names of a node's shared memory begin with; a local rank follows."""
    return f"everstep-{hashlib.sha256(job.encode()).hexdigest()[:12]}-{node}-"


def copies_of(shard: int) -> int:
    """The number, in place of a local rank, of the segment with copies of that shard of another node."""
    return -1 - shard


@dataclass(eq=False)
class Held:
    """One segment and what its slots are worth."""

    local_rank: int
    """Whose worker writes it; negative for copies of another node's shard (`copies_of`)."""
    file: SegmentFile
    table: SlotTable
    sharded: bool = False
    """Is it some rank's own shard?"""
    told: bool = False
    """Does a worker know of it? It writes to no other one until it is told so."""
    outlived: bool = False
    """A newer segment has what this one was kept for: it goes as soon as nobody is at work with it."""
    broken: str = ""
    """Why its other slots cannot have their memory."""

    def data(self, slot: int) -> memoryview:
        """The bytes of the whole state in a slot."""
        return self.file.slot(slot)[: self.table[slot].size]

    def idle(self) -> bool:
        """Nothing worth keeping, nobody at work."""
        return not self.table.whole() and not self.table.writing()

    def busy(self) -> bool:
        """Somebody writes to it or reads it."""
        return bool(self.table.writing()) or any(self.table[slot].pins for slot in range(len(self.table)))


@dataclass
class Segments:
    """All segments of a node. A rank has a second one for a while when its state changed its size: the first keeps what
    can be restored until the second holds a whole state."""

    changed: threading.Condition
    """The keeper's lock."""
    directory: Path
    prefix: str
    slots: int
    _making: list[NewSegment] = field(default_factory=list)
    """Those whose memory is being allocated."""
    _held: dict[int, list[Held]] = field(default_factory=dict)
    _made: int = 0
    _closed: bool = False
    _round: int = 0
    _start: tuple[int, int] = (0, 0)

    def reclaim(self) -> None:
        """Remove what an earlier incarnation of this node left."""
        for path in self.directory.glob(f"{self.prefix}*"):
            if re.fullmatch(r"(copy)?\d+(\.\d+)?", path.name.removeprefix(self.prefix)):
                path.unlink(missing_ok=True)

    def all(self) -> list[Held]:
        """Every segment."""
        return [held for every in self._held.values() for held in every]

    def staged(self) -> list[Held]:
        """Those that this node's workers write."""
        return [held for held in self.all() if held.local_rank >= 0]

    def current(self, local_rank: int) -> Held | None:
        """The segment that the rank writes to."""
        return next(reversed(self._held.get(local_rank, ())), None)

    def serve(self, round: int, iteration: int, shard: int) -> tuple[Held, int] | None:  # noqa: A002
        """Where a shard lies whole, as those name it who do not know how many there are."""
        for held in self.all():
            for slot in held.table.whole():
                identity = held.table[slot].identity
                if identity and identity[:3] == (round, iteration, shard):
                    return held, slot
        return None

    def find(self, identity: Identity, local_rank: int | None = None) -> tuple[Held, int] | None:
        """Where a state lies whole."""
        for held in self.all():
            slot = held.table.find(identity)
            if slot is not None and local_rank in (None, held.local_rank):
                return held, slot
        return None

    def or_newer(self, identity: Identity, local_rank: int) -> Identity:
        """That state if it lies whole, else the rank's newest of the same round that came after it, if there is one."""
        whole = self.newest(local_rank, identity.round)
        return identity if identity in whole or not whole else max(whole[0], identity)

    def newest(self, local_rank: int, round: int) -> list[Identity]:  # noqa: A002
        """The rank's whole states of that round, the newest first."""
        found = [held.table[slot].identity for held in self._held.get(local_rank, ()) for slot in held.table.whole()]
        return sorted({one for one in found if one and one.round == round}, reverse=True)

    def for_worker(self, local_rank: int, capacity: int, sharded: bool = False, peer: bool = False) -> Held:
        """The segment that the rank's worker writes to from now on, with slots of exactly that capacity (0: a control
        page only). One more slot for a sharded state, of which the two newest are kept. With a `peer` there must be
        room for copies of its shard, too, which come later and are about as large. Raises SegmentError: no room.

        Of a new one the slots get their memory one after the other, in a thread.
        """
        held = self._fitting(self._held.get(local_rank, [])[-1:], capacity, self.slots + sharded)
        if held is None:
            if (current := self.current(local_rank)) is not None and current.idle():
                self._remove(current)
            held = self._make(local_rank, capacity, self.slots + sharded, sharded, peer)
            self._held.setdefault(local_rank, []).append(held)
        held.told, held.sharded = True, sharded
        return held

    def to_fetch_into(self, local_rank: int, capacity: int, sharded: bool = False) -> Held:
        """A segment to fetch a state into that fills `capacity`: any of the rank's, or a new one behind that which the
        worker was told of. Its first slots may have their memory, or will. Raises SegmentError: no room."""
        count = COPY_SLOTS if local_rank < 0 else self.slots + sharded
        every = self._held.setdefault(local_rank, [])
        held = self._fitting(every, capacity, count)
        if held is None:
            if every and every[-1].idle() and not every[-1].told:
                self._remove(every[-1])
            held = self._make(local_rank, capacity, count, sharded)
            every.insert(len(every) - (bool(every) and every[-1].told), held)
        return held

    def _fitting(self, among: list[Held], capacity: int, count: int) -> Held | None:
        """The newest with so many slots of that capacity; none that cannot get memory for them."""
        same = (
            one for one in reversed(among) if one.file.capacity == round_to_pages(capacity) and len(one.table) == count
        )
        held = next((one for one in same if not one.broken), None)
        if held is not None:
            held.outlived = False
        return held

    def _make(self, local_rank: int, capacity: int, count: int, sharded: bool, peer: bool = False) -> Held:
        """A new one."""
        if self._closed:
            raise SegmentError("this node is leaving")
        slots = count if capacity else 0
        copies = self._copies_to_come(local_rank) if sharded and peer else 0
        require_room(self.directory, slots, copies, capacity, sum(new.missing_bytes for new in self._making))
        self._made += 1
        suffix = f".{self._made}" if self._held.get(local_rank) else ""
        name = f"{local_rank}" if local_rank >= 0 else f"copy{copies_of(local_rank)}"
        new = NewSegment(self.directory / f"{self.prefix}{name}{suffix}", slots, capacity)
        self._making.append(new)
        held = Held(local_rank, new.segment, SlotTable(count, KEPT_SHARDED if sharded else 1, slots), sharded)
        threading.Thread(target=self._allocate, args=(held, new), name="everstep-allocate", daemon=True).start()
        return held

    def _copies_to_come(self, local_rank: int) -> int:
        """Slots for copies of the peer's shards, as many as this node has of its own, that are not made yet."""
        ranks = {one.local_rank for one in self.staged() if one.sharded} | {local_rank}
        copied = {one.local_rank for one in self.all() if one.local_rank < 0}
        return COPY_SLOTS * max(len(ranks) - len(copied), 0)

    def _allocate(self, held: Held, new: NewSegment) -> None:
        """Give all its slots their memory, in a thread, while it is wanted."""
        for _ in range(new.slots):
            with self.changed:
                if held not in self._held.get(held.local_rank, ()):
                    break
            try:
                slot = new.allocate_slot()
            except SegmentError as error:
                with self.changed:
                    self._break(held, str(error))
                break
            with self.changed:
                held.table.allocated(slot)
                self.changed.notify_all()
        with self.changed:
            self._making.remove(new)
            new.close()
            self.changed.notify_all()

    def _break(self, held: Held, why: str) -> None:
        """It gets no more memory. Its worker writes to no other one, so that it is told when it wants to."""
        held.broken = why
        if held.idle() and not held.told and held in self._held.get(held.local_rank, ()):
            self._remove(held)

    def forget_earlier(self, local_rank: int) -> None:
        """If the current segment holds a whole state, let go of the earlier ones, of those with a reader when it ends.

        Of a sharded state it must hold two: when this rank has staged the second, every rank has staged the first.
        """
        *earlier, current = self._held[local_rank]
        if len(current.table.whole()) <= current.sharded:
            return
        for held in earlier:
            held.outlived = True
            self._let_go(held)

    def unpin(self, held: Held, slot: int) -> None:
        """A reader ends."""
        held.table.unpin(slot)
        self._let_go(held)
        self.changed.notify_all()

    def _let_go(self, held: Held) -> None:
        if held.outlived and not held.busy() and held in self._held.get(held.local_rank, ()):
            self._remove(held)

    def _remove(self, held: Held) -> None:
        self._held[held.local_rank].remove(held)
        held.file.unlink()

    def begin(self, round: int, start: tuple[int, int]) -> None:  # noqa: A002
        """A round begins from that (round, iteration): copies of what was staged after it are let go.

        Else they would stay as the newest ones, and this round's would take the place of what it began from.
        """
        self._round, self._start = round, start
        for held in self.all():
            for slot in held.table.whole() if held.local_rank < 0 else ():
                identity = held.table[slot].identity
                if identity and self.undone(identity) and not held.table[slot].pins:
                    held.table.drop(slot)

    def undone(self, identity: Identity) -> bool:
        """Was it staged after what the running round began from, and before the round?"""
        return self._start < identity[:2] and identity.round < self._round

    def forget_copies(self, round: int) -> None:  # noqa: A002
        """Let go of copies of rounds before that one, of those with a reader when it ends: newer ones lie somewhere
        else now."""
        for held in self.all():
            newest = held.table.newest()
            identity = held.table[newest].identity if newest is not None else None
            past = identity is None or identity.round < round
            coming = held.table.absent() or held.table.writing()  # Newer ones.
            if held.local_rank < 0 and past and not coming:
                held.outlived = True
                self._let_go(held)

    def unlink(self) -> None:
        """Remove every file; no more are made."""
        self._closed = True
        for held in self.all():
            held.file.unlink()
        self._held.clear()
