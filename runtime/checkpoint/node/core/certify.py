"""Which states are compared with other nodes' replicas, and which certified ones stay in memory.

Invariant: a rank's newest certified state is not overwritten before a newer one is certified. So two more slots are
needed: for that state, and for the one that is being compared.
"""

from everstep.runtime.checkpoint.node.core.actions import ReportEvidence
from everstep.runtime.checkpoint.node.core.events import StateCertified
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.rounds import Seat


class Certification:
    """The states of one node's ranks that are compared, and those that are certified."""

    def __init__(self, tx: Transaction, segments: Segments) -> None:
        self._tx, self._segments = tx, segments
        self._interval = 0
        """Iterations between two states that are compared; 0: none is."""
        self._compared: dict[int, Pin] = {}
        """By local rank: the state that is compared, or will be once its digest is known."""
        self._reported: set[Pin] = set()
        """Those whose evidence is on its way."""
        self._certified: dict[int, Pin] = {}
        """By local rank: the newest certified state."""

    def begin(self, seat: Seat) -> None:
        """A round begins: what it rolls back is neither compared nor kept."""
        self._interval = seat.certifies
        for local_rank in list(self._compared):
            self._drop(self._compared.pop(local_rank))
        for local_rank, pin in list(self._certified.items()):
            if not self._interval or self._segments.is_rolled_back(pin.identity):
                self._drop(self._certified.pop(local_rank))

    def close(self) -> None:
        """The node leaves."""
        for pins in (self._compared, self._certified):
            for local_rank in list(pins):
                self._drop(pins.pop(local_rank))

    def note_stage(self, segment: Segment, identity: Identity) -> None:
        """A worker has staged that state. It is compared, instead of an earlier one that has no verdict yet, if its
        iteration is due: it is so on all nodes."""
        slot = segment.table.find(identity)
        if not self._interval or identity.iteration % self._interval or slot is None:
            return
        if (earlier := self._compared.pop(segment.local_rank, None)) is not None:
            self._drop(earlier)
        self._compared[segment.local_rank] = self._segments.pin(segment, slot, Reader.COMPARE)

    def advance(self) -> bool:
        """Report what has its digest now; keep what the round started from. Returns whether there was anything."""
        has_changed = self._keep_start()
        for local_rank, pin in list(self._compared.items()):
            if pin.flaw:
                self._drop(self._compared.pop(local_rank))
                has_changed = True
            elif pin.digest and pin not in self._reported:
                self._reported.add(pin)
                self._tx.act(ReportEvidence(pin.identity, pin.location))
                has_changed = True
        return has_changed

    def _keep_start(self) -> bool:
        """Pin the state that the round started from, which is certified, until a newer one is."""
        restore = self._segments.seat.restore if self._segments.seat else None
        if not self._interval or restore is None:
            return False
        has_changed, place = False, (restore.round, restore.iteration)
        for segment in self._segments.of_workers():
            certified_slot = self._certified.get(segment.local_rank)
            if certified_slot is not None and certified_slot.identity[:2] >= place:
                continue
            for slot in segment.table.complete():
                identity = segment.table[slot].identity
                if identity and identity[:2] == place:
                    self._keep(segment.local_rank, self._segments.pin(segment, slot, Reader.CERTIFIED))
                    has_changed = True
                    break
        return has_changed

    def note_verdict(self, event: StateCertified) -> None:
        """The state is certified. It takes the place of the rank's earlier one."""
        for local_rank, pin in list(self._compared.items()):
            if pin.identity == event.identity:
                del self._compared[local_rank]
                if pin.flaw:
                    self._drop(pin)
                else:
                    self._keep(local_rank, pin)

    def _keep(self, local_rank: int, pin: Pin) -> None:
        if (earlier := self._certified.pop(local_rank, None)) is not None:
            self._drop(earlier)
        self._certified[local_rank] = pin

    def _drop(self, pin: Pin) -> None:
        self._reported.discard(pin)
        self._segments.unpin(pin)
