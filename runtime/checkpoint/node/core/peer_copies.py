"""Peer copies: what a rank staged of a sharded state is also in the memory of other failure domains.

The node that staged a shard asks each of its peers to fetch it, all at the same time and one state after the other for
each local rank. A rank stages the next state only when each copy has succeeded, or has failed, which is logged. So
while ranks keep step, as collectives make them, the last two states of every surviving rank (`slots.KEPT_SHARDED`)
include the last one of which a lost node's shards were copied. Where several nodes may be lost at once, peers keep the
last two copies as well: of two lost nodes, one may have copied a state more than the other. Invariant: whatever failure
domains are lost, as many as there are copies, some (round, iteration) is complete in memory.

Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints" (SOSP 2023), for copying
every iteration's state to fixed peers.
"""

from dataclasses import dataclass

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core.actions import FetchShard, Location, ReportProgress, RequestPeerCopy, Warn
from everstep.runtime.checkpoint.node.core.events import CopyShard, FetchEnded, PeerCopyEnded
from everstep.runtime.checkpoint.node.core.peer_reads import PeerReads
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segment, Segments, copies_of
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.holdings import CopyRequest, Holding
from everstep.runtime.protocol.rounds import Seat

SILENT_S = 1.5
"""A peer that sends nothing for this long is given up, and the copy with it: no save waits longer for a peer that is
dead, frozen or cut off."""
RETRY_S = 20.0
"""A silent peer is asked for no more copies for this long: each would cost a save that wait again."""
FULL_S = 30.0
"""A copy waits for a slot for this long: both are busy while one is being read and an earlier fetch is running."""
PROGRESS_S = 0.5
"""Interval at which the node that asked for a copy is told that its memory is being allocated."""
_ROLLED_BACK = "another round began from an earlier state"


@dataclass(eq=False)
class _Sending:
    local_rank: int
    peer: str
    pin: Pin
    work: int | None = None
    """The request to the peer; None: the digest is not known yet."""


class SentCopies:
    """The copies that this node asks its peers to fetch."""

    def __init__(self, tx: Transaction, segments: Segments, reads: PeerReads) -> None:
        self._tx, self._segments, self._reads = tx, segments, reads
        self._peers: tuple[str, ...] = ()
        self._sending: list[_Sending] = []
        """Of this round."""
        self._requested: dict[int, _Sending] = {}
        """By work, including earlier rounds: the peer reads until it has answered."""
        self._errors: set[str] = set()
        """Those of this round that were logged."""
        self._silent_until: dict[str, float] = {}
        """By peer."""

    def begin(self, seat: Seat) -> None:
        """A round begins, with other peers or none. The state it starts from is sent again."""
        self._begin(seat.peers)

    def close(self) -> None:
        """Ask for no more copies."""
        self._begin(())

    def _begin(self, peers: tuple[str, ...]) -> None:
        self._peers = peers
        self._errors.clear()
        self._silent_until.clear()
        for sending in self._sending:
            if sending.work is None:
                self._segments.unpin(sending.pin)
        self._sending.clear()

    def is_busy(self, local_rank: int) -> bool:
        """Whether what that worker staged last is still on its way."""
        return any(sending.local_rank == local_rank for sending in self._sending)

    def send(self, local_rank: int, segment: Segment, slot: int) -> None:
        """Have that complete state copied by every peer that answers."""
        if self.is_busy(local_rank):
            return
        for peer in self._peers:
            if self._tx.now >= self._silent_until.get(peer, 0.0):
                pin = self._segments.pin(segment, slot, Reader.COPY)
                self._sending.append(_Sending(local_rank, peer, pin))

    def advance(self) -> bool:
        """Request every copy whose digest is known. Returns whether there was one."""
        has_moved = False
        for sending in list(self._sending):
            pin = sending.pin
            if sending.work is not None or not (pin.digest or pin.flaw):
                continue
            has_moved = True
            if pin.flaw:
                self._sending.remove(sending)
                self._end(sending, pin.flaw)
            else:
                sending.work = self._tx.number_work()
                self._requested[sending.work] = sending
                request = CopyRequest(self._reads.describe(pin), len(self._peers))
                self._tx.act(RequestPeerCopy(sending.work, sending.peer, request))
        return has_moved

    def end_copy(self, event: PeerCopyEnded) -> None:
        """The peer has its copy or has not."""
        sending = self._requested.pop(event.work)
        if event.silent:
            self._silent_until[sending.peer] = self._tx.now + RETRY_S
        if sending in self._sending:
            self._sending.remove(sending)
        self._end(sending, event.error)

    def _end(self, sending: _Sending, error: str) -> None:
        """Unpin, and log the error, once a round for each reason."""
        if error and sending.peer in self._peers and error not in self._errors:
            self._errors.add(error)
            identity = sending.pin.identity
            what = f"iteration {identity.iteration}, shard {identity.shard}"
            self._tx.act(Warn(f"{what} has no copy in a peer's memory: {error}"))
        self._segments.unpin(sending.pin)


@dataclass(eq=False)
class _Receiving:
    ticket: int
    source: Holding
    copies: int
    """How many nodes keep one."""
    full_until: float
    """When it will have waited too long for a slot."""
    progress_at: float
    segment: Segment | None = None
    slot: int = 0

    @property
    def identity(self) -> Identity:
        return Identity(self.source.round, self.source.iteration, self.source.shard, self.source.shards)


class ReceivedCopies:
    """The copies that peers ask this node to fetch."""

    def __init__(self, tx: Transaction, segments: Segments) -> None:
        self._tx, self._segments = tx, segments
        self._waiting: list[_Receiving] = []
        """For memory or a slot."""
        self._fetching: dict[int, _Receiving] = {}
        """By work."""

    def copy_shard(self, event: CopyShard) -> None:
        """A peer wants a copy of this shard."""
        now = self._tx.now
        self._waiting.append(_Receiving(event.ticket, event.source, event.copies, now + FULL_S, now + PROGRESS_S))

    def advance(self) -> bool:
        """Start every fetch that has a slot. Returns whether there was one."""
        waiting, self._waiting = self._waiting, []
        for receiving in waiting:
            try:
                if not self._start(receiving):
                    self._waiting.append(receiving)
                    continue
            except (SegmentError, KeeperError) as error:
                self._tx.refuse(receiving.ticket, KeeperError(str(error)))
            self._segments.release(receiving)
        return len(self._waiting) < len(waiting)

    def _start(self, receiving: _Receiving) -> bool:
        """Returns whether it waits no more. Raises KeeperError, SegmentError.

        No slot is used before all slots for copies are allocated.
        """
        segments, now = self._segments, self._tx.now
        if segments.find(receiving.identity):
            self._tx.answer(receiving.ticket)
            return True
        if segments.is_rolled_back(receiving.identity):
            raise KeeperError(_ROLLED_BACK)
        source = receiving.source
        receiving.segment = segments.claim(receiving, copies_of(source.shard), source.size, copies=receiving.copies)
        if receiving.segment.table.absent():
            receiving.full_until = now + FULL_S
            if now >= receiving.progress_at:
                receiving.progress_at = now + PROGRESS_S
                self._tx.act(ReportProgress(receiving.ticket))
            return False
        slot = receiving.segment.table.acquire(receiving.identity)
        if slot is None:
            if now >= receiving.full_until:
                raise KeeperError(f"shard {receiving.source.shard} is still read or fetched after {FULL_S:g} s")
            return False
        receiving.slot, work = slot, self._tx.number_work()
        self._fetching[work] = receiving
        location = Location(receiving.segment.number, slot, receiving.source.size)
        self._tx.act(FetchShard(work, location, receiving.source, ticket=receiving.ticket))
        return True

    def end_fetch(self, event: FetchEnded) -> bool:
        """Returns whether that fetch was for a copy."""
        receiving = self._fetching.pop(event.work, None)
        if receiving is None:
            return False
        assert receiving.segment is not None
        table = receiving.segment.table
        error = event.refusal.why if event.refusal else ""
        if self._segments.is_rolled_back(receiving.identity):  # A round has begun meanwhile.
            error = error or _ROLLED_BACK
        if error:
            table.abandon(receiving.slot)
            self._tx.refuse(receiving.ticket, KeeperError(error))
            return True
        table.stage(receiving.slot, receiving.source.size)
        slot = table.find(receiving.identity)  # Another slot if two requests fetched it.
        assert slot is not None
        if not table[slot].digest:
            table.set_digest(slot, receiving.source.digest)
        self._tx.answer(receiving.ticket)
        return True

    def next_deadline(self) -> float | None:
        """When a copy has waited too long for a slot, or its peer is to be told that it is being worked on."""
        deadlines = [receiving.full_until for receiving in self._waiting]
        deadlines += [
            receiving.progress_at
            for receiving in self._waiting
            if receiving.segment and receiving.segment.table.absent()
        ]
        return min(deadlines, default=None)

    def close(self, why: str) -> None:
        """End every wait; refuse what is being fetched, too."""
        for receiving in [*self._waiting, *self._fetching.values()]:
            self._tx.refuse(receiving.ticket, KeeperError(why))
        self._waiting.clear()
        self._fetching.clear()
