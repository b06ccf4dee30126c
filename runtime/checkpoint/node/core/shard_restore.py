"""One shard that a round starts from: from this node's memory or else the best source that supplies the right bytes.

The life of a restore is one table of stages; an unlisted step raises.
"""

from enum import StrEnum

from msgspec.structs import replace

from everstep.runtime.checkpoint.node.core.actions import CheckDigest, FetchShard, Location, ReportUnrestored, Warn
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.holdings import Flaw, Holding, Refusal

RETRY_S = 1.0
"""Sources that do not answer are asked again after this long."""


class Stage(StrEnum):
    """How far the restore of a shard is."""

    LOOK = "look"
    """Find the shard in this node's memory."""
    CHECK = "check"
    """Compare what memory holds with its digest."""
    PLACE = "place"
    """A source is chosen; find a slot for its bytes."""
    FETCH = "fetch"
    """Its bytes are arriving in that slot."""
    DIGEST = "digest"
    """They have arrived; their digest is computed if the source did not promise one."""
    REST = "rest"
    """No source answers; ask them again in a while."""
    READY = "ready"
    """Verified in memory and pinned."""
    END = "end"
    """Handed over, impossible, or not needed any more."""


L, C, P, F, D, W, R, E = Stage
STAGES: dict[Stage, frozenset[Stage]] = {
    L: frozenset({C, P, W, E}),
    C: frozenset({L, R, E}),
    P: frozenset({F, W, E}),
    F: frozenset({P, D, W, E}),
    D: frozenset({P, W, R, E}),
    W: frozenset({P, W, E}),
    R: frozenset({E}),
    E: frozenset(),
}
"""The stages that may follow."""


class ShardRestore:
    """One shard for a local rank, or for all."""

    def __init__(
        self,
        tx: Transaction,
        segments: Segments,
        options: KeeperOptions,
        identity: Identity,
        sources: list[Holding],
        reader: int | None,
    ) -> None:
        """`sources`: of this shard, best first. `reader`: a local rank; None: all of them."""
        self._tx, self._segments, self._options = tx, segments, options
        self.identity, self.reader = identity, reader
        self.stage = Stage.LOOK
        self.source: Holding | None = None
        """Where it comes from; None: this node's memory."""
        self.pin: Pin | None = None
        self.location: Location | None = None
        """The bytes being verified or fetched."""
        self.work: int | None = None
        """Under way."""
        self.retry_at = 0.0
        """In REST: when sources are asked again."""
        self._sources, self._next_sources = sources, list[Holding]()
        """Those worth asking, and of them those not asked in this pass."""
        self._refused, self._refused_in_pass = list[Refusal](), list[Refusal]()
        self._until = 0.0
        """Sources that do not answer are asked again until then."""
        self._cancelled = False
        self._segment: Segment | None = None
        self._slot = 0

    def __str__(self) -> str:
        of, shard = self.identity, ""
        if of.shards > 1:
            shard = f", shard {of.shard} of {of.shards}"
        return f"iteration {of.iteration} of round {of.round}{shard}"

    @property
    def refused(self) -> list[Refusal]:
        """What was wrong with sources so far."""
        return [*self._refused, *self._refused_in_pass]

    def advance(self) -> bool:
        """Take the next step if it is possible now. Returns whether it was. Raises SegmentError if there is no memory
        for the shard."""
        match self.stage:
            case Stage.LOOK:
                return self._look()
            case Stage.CHECK if self.work is None:
                return self._check()
            case Stage.PLACE:
                return self._fetch()
            case Stage.DIGEST:
                return self._await_digest()
            case Stage.REST if self._tx.now >= self.retry_at:
                self._next_sources = list(self._sources)
                self._choose_source()
                return True
        return False

    def cancel(self) -> None:
        """It is not needed any more. Work that is under way goes on to its end."""
        self._cancelled = True
        if self.work is None and self.stage is not Stage.END:
            self._end()

    def hand_over(self) -> Pin:
        """End with the shard verified in memory; the caller unpins it."""
        pin, self.pin = self.pin, None
        assert pin is not None
        self._warn()
        self._step(Stage.END)
        return pin

    def _step(self, stage: Stage) -> None:
        if stage not in STAGES[self.stage]:
            raise RuntimeError(f"{stage} does not follow {self.stage}")
        self.stage = stage

    # This node's memory

    def _look(self) -> bool:
        if slot := self._segments.find(self.identity):
            self.pin = self._segments.pin(*slot, Reader.RESTORE)
            self.location = self.pin.location
            self._step(Stage.CHECK)
        else:
            self._until = self._tx.now + self._options.unreachable_s
            self._next_sources = list(self._sources)
            self._choose_source()
        return True

    def _check(self) -> bool:
        assert self.pin is not None
        if self.pin.flaw:
            self._look_again(self.pin, self.pin.flaw)
        elif self.pin.digest:
            self.work = self._tx.number_work()
            self._tx.act(CheckDigest(self.work, self.pin.location, self.pin.digest))
        else:
            return False
        return True

    def end_check(self, flaw: str) -> None:
        """The bytes in memory are right, or `flaw` says what is wrong."""
        pin, self.work = self.pin, None
        assert pin is not None
        if flaw and not pin.flaw:
            pin.segment.table.invalidate(pin.slot, flaw)
        if pin.flaw:  # Perhaps of another reader, or it is rolled back.
            self._look_again(pin, pin.flaw)
        else:
            self._step(Stage.READY)
        if self._cancelled:
            self._end()

    def _look_again(self, pin: Pin, flaw: str) -> None:
        """A second slot may hold it, too."""
        self._refused.append(self._refuse_memory(flaw))
        self._segments.unpin(pin)
        self.pin = None
        self._step(Stage.LOOK)

    def _refuse_memory(self, flaw: str) -> Refusal:
        of = self.identity
        return Refusal(of.round, of.iteration, f"own memory: {flaw}", node=self._options.node, shard=of.shard)

    # Other sources

    def _choose_source(self) -> None:
        """Choose the next source of this pass. After the last one, rest or give up."""
        while self._next_sources:
            source = self._next_sources.pop(0)
            if source.node != self._options.node or source.key:
                self.source = source
                self._step(Stage.PLACE)
                return
            if not any(refusal.covers(source) for refusal in self.refused):
                self._refused_in_pass.append(self._refuse_memory("it is no longer in memory"))
        unreachable = [refusal for refusal in self._refused_in_pass if refusal.flaw is not Flaw.DAMAGED]
        self._refused += [refusal for refusal in self._refused_in_pass if refusal.flaw is Flaw.DAMAGED]
        self._refused_in_pass = []
        self._sources = [source for source in self._sources if any(refusal.covers(source) for refusal in unreachable)]
        if self._sources and self._tx.now < self._until:
            self.retry_at = self._tx.now + RETRY_S
            self._step(Stage.REST)
            return
        self._refused += unreachable
        self._warn()
        self._tx.act(ReportUnrestored(tuple(self._refused)))  # Workers wait until another round has begun.
        self._step(Stage.END)

    def _fetch(self) -> bool:
        """Fetch into a slot of a segment whose slots have the size of this shard. Raises SegmentError."""
        source = self.source
        assert source is not None
        segment = self._segments.claim(self, self.reader or 0, source.size, self.identity.shards > 1)
        slot = segment.table.acquire(self.identity)
        if slot is None:
            return False
        self._segments.release(self)
        self._segment, self._slot, self.work = segment, slot, self._tx.number_work()
        self.location = Location(segment.number, slot, source.size)
        self._tx.act(FetchShard(self.work, self.location, source))
        self._step(Stage.FETCH)
        return True

    def end_fetch(self, refusal: Refusal | None) -> None:
        """The bytes have arrived and agree with the promised digest, or `refusal` says what is wrong."""
        segment, source, self.work = self._segment, self.source, None
        assert segment is not None
        assert source is not None
        if refusal is not None:
            segment.table.abandon(self._slot)
            self._refused_in_pass.append(refusal)
            if not self._cancelled:
                self._choose_source()
        else:
            segment.table.stage(self._slot, source.size)
            slot = segment.table.find(self.identity)
            assert slot is not None
            self.pin = self._segments.pin(segment, slot, Reader.RESTORE)
            self.location = self.pin.location
            if source.digest and not self.pin.digest:
                segment.table.set_digest(slot, source.digest)
            self._step(Stage.DIGEST)
        if self._cancelled:
            self._end()

    def _await_digest(self) -> bool:
        pin, source = self.pin, self.source
        assert pin is not None
        assert source is not None
        if pin.flaw:
            refusal = Refusal(source.round, source.iteration, pin.flaw, key=source.key)
            if not source.key:
                refusal = replace(refusal, node=source.node, shard=source.shard)
            self._refused_in_pass.append(refusal)
            self._segments.unpin(pin)
            self.pin = None
            self._choose_source()
        elif pin.digest:
            self._step(Stage.READY)
        else:
            return False
        return True

    # The end

    def _end(self) -> None:
        self._segments.release(self)
        if self.pin is not None:
            self._segments.unpin(self.pin)
            self.pin = None
        self._step(Stage.END)

    def _warn(self) -> None:
        for refusal in self.refused:
            self._tx.act(Warn(f"restoring {self}: {refusal.why}"))
