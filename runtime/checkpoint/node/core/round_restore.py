"""What one round of a node starts from: brought into its own memory, from the nearest place that has the right bytes.
Pure: no IO, no clock, no lock.

State that is the same on every rank is one shard, which all local ranks read. Of a sharded state each local rank gets
the shard of its rank; where another number of ranks cut it, workers read what they need themselves (see `reshard`).

Invariant: what a round starts from is not written before it is not needed: a newer state is held whole by all ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.node.core.events import (
    Check,
    Checked,
    Fetch,
    Fetched,
    NotFetched,
    Start,
    TellUnrestored,
    Warn,
    Where,
)
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.messages import Flaw, Holding, Refusal, Restore, Seat

UNREACHABLE_S = 30.0
"""So long a source that does not answer is asked again, when no other one gives the right bytes."""
AGAIN_S = 1.0
PARALLEL = 4
"""Shards of local ranks that are fetched at once: one connection alone is slower than a network."""


class Stage(StrEnum):
    """How far one shard of a start is."""

    LOOK = "look"
    """Own memory is looked into."""
    CHECK = "check"
    """What it has is digested, then compared with that."""
    PLACE = "place"
    """A source is chosen, and waits for a slot."""
    FETCH = "fetch"
    """It comes into that slot."""
    SEAL = "seal"
    """It has come, and its digest is computed where none was promised."""
    REST = "rest"
    """Sources that do not answer are asked again in a while."""
    DONE = "done"


L, C, P, F, S, R, D = Stage
STAGES: dict[Stage, frozenset[Stage]] = {
    L: frozenset({C, P, R, D}),
    C: frozenset({L, D}),
    P: frozenset({F, R, D}),
    F: frozenset({P, S, R, D}),
    S: frozenset({P, R, D}),
    R: frozenset({P, R, D}),
    D: frozenset(),
}
"""What may follow; anything else raises."""


@dataclass(eq=False)
class _Bringing:
    """One shard for a local rank; None: for all."""

    reader: int | None
    identity: Identity
    sources: list[Holding]
    """Those to be asked in this pass, and the next ones, best first."""
    stage: Stage = Stage.LOOK
    to_ask: list[Holding] = field(default_factory=list)
    """Of this pass."""
    refused: list[Refusal] = field(default_factory=list)
    last: list[Refusal] = field(default_factory=list)
    """Of this pass."""
    until: float | None = None
    """So long sources that do not answer are asked again."""
    again_at: float = 0.0
    pin: Pin | None = None
    work: int | None = None
    segment: Segment | None = None
    slot: int = 0
    source: Holding | None = None
    """None: it was in own memory."""

    def step(self, stage: Stage) -> None:
        """It is that far now."""
        if stage not in STAGES[self.stage]:
            raise RuntimeError(f"{stage} does not follow {self.stage}")
        self.stage = stage

    @property
    def what(self) -> str:
        shard = f", shard {self.identity.shard} of {self.identity.shards}" if self.identity.shards > 1 else ""
        return f"iteration {self.identity.iteration} of round {self.identity.round}{shard}"


class RoundStart:
    """Of one round."""

    def __init__(
        self,
        seat: Seat,
        segments: Segments,
        node: str,
        workers: int,
        unreachable_s: float,
        send: Callable[[int, Pin], None],
    ) -> None:
        """`workers` are the local ranks of this node; `send` has a whole shard of that local rank copied into a peer's
        memory."""
        self.seat = seat
        self.error = ""
        """Why this node cannot start, whatever the sources have."""
        self.over = False
        self._segments, self._node, self._unreachable_s, self._send = segments, node, unreachable_s, send
        self._near: dict[int | None, Where] = {}
        """What is being looked at, by local rank; None: for all of them."""
        self._answers: dict[int | None, Start] = {}
        self._pins: dict[int, Pin] = {}
        self._stages: dict[int, int] = {}
        self._bringing: list[_Bringing] = []
        restore = seat.restore
        shards = restore.sources[0].shards if restore else 0
        if restore is None:
            self._answers[None] = Start()
        elif shards == 1:
            self._bring(restore, 0, None)
        elif shards == seat.world_size:
            for local_rank in range(workers):
                self._bring(restore, seat.first_rank + local_rank, local_rank)
        else:
            self._answers[None] = Start(None, restore.round, restore.iteration, shards=restore.sources)

    def _bring(self, restore: Restore, shard: int, reader: int | None) -> None:
        identity = Identity(restore.round, restore.iteration, shard, restore.sources[0].shards)
        sources = [source for source in restore.sources if source.shard == shard]
        self._bringing.append(_Bringing(reader, identity, sources))

    def answer(self, local_rank: int) -> Start | None:
        """What that worker shall read; None while it is not there."""
        return self._answers.get(local_rank) or self._answers.get(None)

    def near(self, local_rank: int) -> Where | None:
        """Where in memory that is, or will be if its bytes are right."""
        near = self._near.get(local_rank) or self._near.get(None)
        return near if near and self._segments.numbered(near.segment) else None

    def is_gone(self, start: Start) -> bool:
        """Were those bytes overwritten since? They may be as soon as the workers have staged enough."""
        if start.where is None:
            return False
        segment, slot = self._segments.numbered(start.where.segment), start.where.slot
        identity = segment.table[slot].identity if segment and slot in segment.table.whole() else None
        return identity is None or identity[:2] != (start.round, start.iteration)

    def staged(self, local_rank: int) -> int:
        """A worker of this round has staged; returns how often it has in this round.

        What it started from is kept by its place in the slots from then on; of a sharded state from the second time on:
        then all ranks have staged the first.
        """
        stages = self._stages[local_rank] = self._stages.get(local_rank, 0) + 1
        if self._is_past(local_rank):
            self._unpin(local_rank)
        return stages

    def end(self) -> None:
        """Another round begins. What is being read or written for this one goes on to its end."""
        self.over = True
        for local_rank in list(self._pins):
            self._unpin(local_rank)
        for one in self._bringing:
            if one.work is None and one.stage is not Stage.DONE:
                self._drop(one)

    @property
    def busy(self) -> bool:
        """Is a work of it still under way?"""
        return any(one.work is not None for one in self._bringing)

    def advance(self, now: float) -> bool:
        """Go on as far as it can; did it?"""
        left = [one for one in self._bringing if one.stage is not Stage.DONE][:PARALLEL]
        moved = False
        for one in left if not self.over else ():
            try:
                moved |= self._advance(one, now)
            except SegmentError as error:
                self.error = f"{one.what} cannot be restored: {error}"
                self._drop(one)
        return moved

    def next_deadline(self) -> float | None:
        """When sources are asked again."""
        resting = (one.again_at for one in self._bringing if one.stage is Stage.REST)
        return None if self.over else min(resting, default=None)

    def ended(self, event: Checked | Fetched | NotFetched, now: float) -> bool:
        """A work has ended; was it one of this round's?"""
        one = next((one for one in self._bringing if one.work == event.work), None)
        if one is None:
            return False
        one.work = None
        match event:
            case Checked(_, flaw):
                self._checked(one, flaw)
            case Fetched():
                self._fetched(one)
            case NotFetched(_, refusal):
                one.last.append(refusal)
                assert one.segment is not None
                one.segment.table.abandon(one.slot)
                self._ask_next(one, now)
        if self.over and one.stage is not Stage.DONE:
            self._drop(one)
        return True

    def _advance(self, one: _Bringing, now: float) -> bool:
        match one.stage:
            case Stage.LOOK:
                return self._look(one, now)
            case Stage.CHECK if one.work is None:
                return self._check(one)
            case Stage.PLACE:
                return self._place(one)
            case Stage.SEAL:
                return self._seal(one, now)
            case Stage.REST if now >= one.again_at:
                one.to_ask = list(one.sources)
                self._ask_next(one, now)
                return True
        return False

    def _look(self, one: _Bringing, now: float) -> bool:
        if found := self._segments.find(one.identity):
            one.pin = self._segments.pin(*found, Reader.RESTORE)
            self._near[one.reader] = one.pin.where
            one.step(Stage.CHECK)
        else:
            one.until, one.to_ask = now + self._unreachable_s, list(one.sources)
            self._ask_next(one, now)
        return True

    def _check(self, one: _Bringing) -> bool:
        pin = one.pin
        assert pin is not None
        if pin.flaw:
            self._not_in_memory(one, pin.flaw)
            return True
        if not pin.digest:
            return False
        one.work = next(self._segments.works)
        self._segments.act(Check(one.work, pin.where, pin.digest))
        return True

    def _checked(self, one: _Bringing, flaw: str) -> None:
        assert one.pin is not None
        flaw = flaw or one.pin.flaw  # Another reader may have found one, or it is rolled back.
        if not flaw:
            self._begin_from(one)
            return
        if not one.pin.flaw:
            one.pin.segment.table.spoil(one.pin.slot, flaw)
        self._not_in_memory(one, flaw)

    def _not_in_memory(self, one: _Bringing, flaw: str) -> None:
        """It may be there a second time."""
        assert one.pin is not None
        one.refused.append(self._own(one.identity, f"own memory: {flaw}"))
        self._segments.unpin(one.pin)
        one.pin = None
        one.step(Stage.LOOK)

    def _own(self, identity: Identity, why: str) -> Refusal:
        return Refusal(identity.round, identity.iteration, why, node=self._node, shard=identity.shard)

    def _ask_next(self, one: _Bringing, now: float) -> None:
        """Choose the next source of this pass; after the last one see who is worth asking again."""
        if self.over:
            one.step(Stage.DONE)
            return
        while one.to_ask:
            source = one.to_ask.pop(0)
            if source.node != self._node or source.key:
                one.source, one.segment = source, None
                one.step(Stage.PLACE)
                return
            if not any(refusal.covers(source) for refusal in [*one.refused, *one.last]):
                one.last.append(self._own(one.identity, "own memory: it is held no more"))
        assert one.until is not None
        again = [refusal for refusal in one.last if refusal.flaw is not Flaw.DAMAGED]
        one.refused += [refusal for refusal in one.last if refusal.flaw is Flaw.DAMAGED]
        one.last = []
        one.sources = [source for source in one.sources if any(refusal.covers(source) for refusal in again)]
        if one.sources and now < one.until:
            one.again_at = now + AGAIN_S
            one.step(Stage.REST)
            return
        one.refused += again
        one.step(Stage.DONE)
        self._warn(one)
        self._segments.act(TellUnrestored(tuple(one.refused)))  # Workers wait until another round has begun.

    def _place(self, one: _Bringing) -> bool:
        """A slot to fetch into, of a segment whose slots are made for this very shard. Raises SegmentError."""
        source = one.source
        assert source is not None
        one.segment = self._segments.to_fetch_into(one, one.reader or 0, source.size, one.identity.shards > 1)
        slot = one.segment.table.acquire(one.identity)
        if slot is None:
            return False
        self._segments.want_no_more(one)
        one.slot, one.work = slot, next(self._segments.works)
        where = self._near[one.reader] = Where(one.segment.number, slot, source.size)
        self._segments.act(Fetch(one.work, where, source))
        one.step(Stage.FETCH)
        return True

    def _fetched(self, one: _Bringing) -> None:
        segment, source = one.segment, one.source
        assert segment is not None
        assert source is not None
        segment.table.stage(one.slot, source.size)
        whole = segment.table.find(one.identity)
        assert whole is not None
        one.pin = self._segments.pin(segment, whole, Reader.RESTORE)
        if source.digest and not one.pin.digest:  # What came was checked against it.
            segment.table.digested(whole, source.digest)
        one.step(Stage.SEAL)

    def _seal(self, one: _Bringing, now: float) -> bool:
        pin, source = one.pin, one.source
        assert pin is not None
        assert source is not None
        if pin.flaw:
            of = Refusal(source.round, source.iteration, pin.flaw, key=source.key)
            one.last.append(of if source.key else replace(of, node=source.node, shard=source.shard))
            one.pin = None
            self._segments.unpin(pin)
            self._ask_next(one, now)
        elif pin.digest:
            self._begin_from(one)
        else:
            return False
        return True

    def _begin_from(self, one: _Bringing) -> None:
        """It is in memory and right: workers may read it."""
        pin, local_rank = one.pin, one.reader or 0
        assert pin is not None
        one.refused += one.last
        self._warn(one)
        shards = self.seat.restore.sources if self.seat.restore and one.identity.shards > 1 else ()
        why = "; ".join(refusal.why for refusal in one.refused)
        place = (one.identity.round, one.identity.iteration)
        self._answers[one.reader] = Start(pin.where, *place, pin.digest, one.source, shards, why)
        one.pin = None
        one.step(Stage.DONE)
        self._near[one.reader] = pin.where
        self._segments.unpin(pin)
        if self._is_past(local_rank):
            return
        self._pins[local_rank] = self._segments.pin(pin.segment, pin.slot, Reader.START)
        if one.reader is not None:
            self._send(local_rank, pin)

    def _is_past(self, local_rank: int) -> bool:
        """Is what that rank started from not needed any more? A worker that never asked for it may be that far before
        it is there."""
        restore = self.seat.restore
        needed = 1 if restore is None or restore.sources[0].shards == 1 else 2
        return self.over or self._stages.get(local_rank, 0) >= needed

    def _unpin(self, local_rank: int) -> None:
        if pin := self._pins.pop(local_rank, None):
            self._segments.unpin(pin)

    def _drop(self, one: _Bringing) -> None:
        """It is brought no further."""
        self._segments.want_no_more(one)
        if one.pin is not None:
            self._segments.unpin(one.pin)
            one.pin = None
        one.step(Stage.DONE)

    def _warn(self, one: _Bringing) -> None:
        for refusal in one.refused:
            self._segments.act(Warn(f"restoring {one.what}: {refusal.why}"))
