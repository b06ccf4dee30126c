"""Which digests are computed, and when: one at a time, first of slots that have readers."""

from everstep.runtime.checkpoint.node.core.actions import ComputeDigest, Warn
from everstep.runtime.checkpoint.node.core.events import DigestEnded
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segments
from everstep.runtime.checkpoint.node.core.slots import SlotState
from everstep.runtime.checkpoint.node.core.transaction import Transaction


class DigestQueue:
    """The digests of one node's memory. A reader waits until its pin has a digest or a flaw."""

    def __init__(self, tx: Transaction, segments: Segments) -> None:
        self._tx, self._segments = tx, segments
        self._running: tuple[int, Pin] | None = None
        """The work that computes a digest, and of which slot."""

    def advance(self) -> bool:
        """Start the next one if none runs: first of slots with readers, then of each segment's newest state, so that
        later damage is detected. Returns whether it did."""
        if self._running is not None:
            return False
        pinned_slots = [(pin.segment, pin.slot) for pin in self._segments.pins]
        newest = ((segment, segment.table.newest()) for segment in self._segments.all())
        pinned_slots += [(segment, slot) for segment, slot in newest if slot is not None]
        for segment, slot in pinned_slots:
            facts = segment.table[slot]
            if facts.state is SlotState.COMPLETE and not facts.digest:
                pin, work = self._segments.pin(segment, slot, Reader.DIGEST), self._tx.number_work()
                self._running = work, pin
                self._tx.act(ComputeDigest(work, pin.location))
                return True
        return False

    def end(self, event: DigestEnded) -> None:
        """A digest is known, or the bytes are no shard."""
        assert self._running is not None
        (work, pin), self._running = self._running, None
        assert work == event.work
        if event.flaw:
            iteration, round_ = pin.identity.iteration, pin.identity.round
            self._tx.act(Warn(f"iteration {iteration} of round {round_} is damaged in memory: {event.flaw}"))
            if not pin.flaw:
                pin.segment.table.invalidate(pin.slot, event.flaw)
        elif not pin.flaw:
            pin.segment.table.set_digest(pin.slot, event.digest)
        self._segments.unpin(pin)
