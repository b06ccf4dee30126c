"""The segments of a node: files and slots by local rank. The keeper holds its lock around every call."""

import hashlib
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runtime.checkpoint.errors import SegmentError
from runtime.checkpoint.segment import NewSegment, SegmentFile, require_room, rounded
from runtime.checkpoint.slots import KEPT_SHARDED, Identity, SlotTable

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
    _making: dict[int, NewSegment] = field(default_factory=dict)
    """Memory that is being allocated for a rank, one at a time."""
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
        whole = [held.table[slot].identity for held in self._held.get(local_rank, ()) for slot in held.table.whole()]
        later = [one for one in whole if one and one.round == identity.round and one > identity]
        return identity if identity in whole else max(later, default=identity)

    def ensure(
        self,
        local_rank: int,
        capacity: int,
        sharded: bool = False,
        told: bool = False,
        peer: bool = False,
        soon: bool = False,
    ) -> Held:
        """A segment with slots of exactly that capacity (0: a control page only). Raises SegmentError: no room.

        Lets go of the keeper's lock while memory is allocated, as a wait does: whoever calls it looks again at what
        else counts. One more slot for a sharded state, of which the two newest are kept. `told`: the worker will write
        to it. With a `peer` there must be room for copies of its shard, too, which come later and are about as large.
        `soon`: as soon as the first slot has its memory; the others get theirs meanwhile, and the next call for this
        rank waits for it.
        """
        count = COPY_SLOTS if local_rank < 0 else self.slots + sharded
        self.changed.wait_for(lambda: self._closed or local_rank not in self._making)
        if self._closed:
            raise SegmentError("this node is leaving")
        if held := self._fitting(local_rank, rounded(capacity), count, told):
            held.told |= told
            held.outlived = False
            return held
        held = self.current(local_rank)
        if held is not None and held.idle() and (told or not held.told):
            self._remove(held)
        if sharded and peer:
            self._require_room(local_rank, count, capacity)
        new = self._new(local_rank, count if capacity else 0, capacity)
        file = self._allocated(local_rank, new, 1 if soon else new.slots)
        absent = count - 1 if soon else 0
        made = Held(local_rank, file, SlotTable(count, KEPT_SHARDED if sharded else 1, absent), sharded, told)
        every = self._held.setdefault(local_rank, [])
        behind = not told and bool(every) and every[-1].told
        every.insert(len(every) - behind, made)
        if soon:
            self._making[local_rank] = new
            threading.Thread(target=self._complete, args=(made, new), name="everstep-allocate", daemon=True).start()
        return made

    def _fitting(self, local_rank: int, capacity: int, count: int, told: bool) -> Held | None:
        """A worker goes on with the newest segment or gets a new one; others take any. None that got no more room."""
        every = self._held.get(local_rank, [])[-told:]
        same = (held for held in reversed(every) if held.file.capacity == capacity and len(held.table) == count)
        return next((held for held in same if not held.table.absent()), None)

    def _require_room(self, local_rank: int, count: int, capacity: int) -> None:
        ranks = {one.local_rank for one in self.staged() if one.sharded} | {local_rank}
        ranks |= {rank for rank in self._making if rank >= 0}
        copies = [one for one in (*(held.local_rank for held in self.all()), *self._making) if one < 0]
        others = sum(new.missing for new in self._making.values())
        coming = COPY_SLOTS * max(len(ranks) - len(copies), 0)
        require_room(self.directory, count, coming, capacity, others)

    def _new(self, local_rank: int, slots: int, capacity: int) -> NewSegment:
        self._made += 1
        suffix = f".{self._made}" if self._held.get(local_rank) else ""
        name = f"{local_rank}" if local_rank >= 0 else f"copy{copies_of(local_rank)}"
        return NewSegment(self.directory / f"{self.prefix}{name}{suffix}", slots, capacity)

    def _allocated(self, local_rank: int, new: NewSegment, slots: int) -> SegmentFile:
        """The new file, given memory for so many slots without the lock."""
        self._making[local_rank] = new
        self.changed.release()
        try:
            file = new.allocate(slots)
        finally:
            self.changed.acquire()
            del self._making[local_rank]
            self.changed.notify_all()
        if self._closed:
            raise SegmentError("this node is leaving")  # The file is removed already.
        return file

    def _complete(self, held: Held, new: NewSegment) -> None:
        """Give the other slots their memory, in a thread. A worker that is to write there is told if there is none."""
        with self.changed, suppress(SegmentError):
            self._allocated(held.local_rank, new, new.slots)
            for slot in held.table.absent():
                held.table.allocated(slot)

    def forget_earlier(self, local_rank: int) -> None:
        """The current segment holds a whole state: let go of the earlier ones, of those with a reader when it ends.

        Of a sharded state it must hold two: when this rank has staged the second, every rank has staged the first.
        """
        *earlier, current = self._held[local_rank]
        if current.sharded and len(current.table.whole()) < 2:
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
            if held.local_rank < 0 and past and not held.table.writing():  # What is written is newer.
                held.outlived = True
                self._let_go(held)

    def unlink(self) -> None:
        """Remove every file; no more are made."""
        self._closed = True
        for one in (*(held.file for held in self.all()), *self._making.values()):
            one.path.unlink(missing_ok=True)
        self._held.clear()
