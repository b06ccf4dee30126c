"""Peer copies: what a rank staged of a sharded state also lies in the memory of another failure domain. Pure: no IO, no
clock, no lock.

The node that staged a shard asks its peer to fetch it, one state at a time for each local rank; a rank stages the next
one only when that is done (or has failed, which is told). So while ranks keep step, as collectives make them, the last
two states of every surviving rank (`slots.KEPT_SHARDED`) include the last one of which a lost node's shards were
copied. Invariant: whatever one failure domain is lost, some (round, iteration) is held whole in memory.

Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints" (SOSP 2023), for copying
every iteration's state to a fixed peer.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core.events import (
    Answer,
    AskPeer,
    Fetch,
    Fetched,
    GotOn,
    NotFetched,
    PeerAnswered,
    Refuse,
    Warn,
    Where,
)
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segment, Segments, copies_of
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.messages import Holding

SILENT_S = 1.5
"""A peer that tells nothing for so long is given up, and with it the copy: no save waits longer for one that is dead,
frozen or cut off."""
AGAIN_S = 20.0
"""So long no more copies are asked of it: each would cost a save that wait again."""
FULL_S = 30.0
"""So long a copy waits for a slot: both are busy while somebody reads one and an earlier fetch goes on."""
TELLS_S = 0.5
"""Who asked for a copy is told so often that its memory is coming."""
_UNDONE = "another round began from an earlier state"


@dataclass(eq=False)
class _Sending:
    peer: str
    pin: Pin
    work: int | None = None
    """That asks the peer; None: its digest is not known yet."""


class SentCopies:
    """What this node asks its peer to fetch."""

    def __init__(self, segments: Segments, described: Callable[[Pin], Holding]) -> None:
        """`described` is what others are told of a slot whose digest is known."""
        self._segments, self._described = segments, described
        self._peer = ""
        self._under_way: dict[int, _Sending] = {}
        """By local rank, of this round."""
        self._asked: dict[int, _Sending] = {}
        """By work, also of earlier rounds: the peer reads until it has answered."""
        self._told = ""
        self._silent_until = 0.0

    def begin(self, peer: str) -> None:
        """A round begins, with the agent at that address as peer; empty: there is no other failure domain. It sends
        what it begins from again: it may be another peer."""
        self._peer, self._told, self._silent_until = peer, "", 0.0
        for sending in self._under_way.values():
            if sending.work is None:
                self._segments.unpin(sending.pin)
        self._under_way.clear()

    @property
    def has_peer(self) -> bool:
        """Is there another failure domain?"""
        return bool(self._peer)

    def busy(self, local_rank: int) -> bool:
        """Is what that worker staged last still on its way?"""
        return local_rank in self._under_way

    def send(self, local_rank: int, segment: Segment, slot: int, now: float) -> None:
        """Have that whole state copied."""
        if self._peer and local_rank not in self._under_way and now >= self._silent_until:
            self._under_way[local_rank] = _Sending(self._peer, self._segments.pin(segment, slot, Reader.COPY))

    def advance(self) -> bool:
        """Ask for what can be asked for; was there any?"""
        moved = False
        for local_rank, sending in list(self._under_way.items()):
            pin = sending.pin
            if sending.work is not None or not (pin.digest or pin.flaw):
                continue
            moved = True
            if pin.flaw:
                del self._under_way[local_rank]
                self._tell(sending, pin.flaw)
                self._segments.unpin(pin)
                continue
            sending.work = next(self._segments.works)
            self._asked[sending.work] = sending
            self._segments.act(AskPeer(sending.work, sending.peer, self._described(pin)))
        return moved

    def answered(self, event: PeerAnswered, now: float) -> None:
        """The peer holds it or does not."""
        sending = self._asked.pop(event.work)
        if event.silent and sending.peer == self._peer:
            self._silent_until = now + AGAIN_S
        for local_rank, one in list(self._under_way.items()):
            if one is sending:
                del self._under_way[local_rank]
        self._tell(sending, event.why)
        self._segments.unpin(sending.pin)

    def _tell(self, sending: _Sending, why: str) -> None:
        """Once a round for each reason."""
        if why and sending.peer == self._peer and why != self._told:
            self._told, of = why, sending.pin.identity
            self._segments.act(
                Warn(f"iteration {of.iteration}, shard {of.shard} has no copy in a peer's memory: {why}")
            )

    def close(self) -> None:
        """Nothing more is asked for."""
        self.begin("")


@dataclass(eq=False)
class _Receiving:
    ticket: int
    source: Holding
    full_until: float
    """Then it has waited too long for a slot."""
    tells_at: float
    segment: Segment | None = None
    slot: int = 0

    @property
    def identity(self) -> Identity:
        return Identity(self.source.round, self.source.iteration, self.source.shard, self.source.shards)


class ReceivedCopies:
    """What peers ask this node to fetch."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._placing: list[_Receiving] = []
        """Those that wait for memory or a slot."""
        self._fetching: dict[int, _Receiving] = {}
        """By work."""

    def ask(self, ticket: int, source: Holding, now: float) -> None:
        """A peer wants this shard kept."""
        self._placing.append(_Receiving(ticket, source, now + FULL_S, now + TELLS_S))

    def advance(self, now: float) -> bool:
        """Go on with those that can; could any?"""
        waiting, self._placing = self._placing, []
        for one in waiting:
            try:
                if not self._place(one, now):
                    self._placing.append(one)
                    continue
            except (SegmentError, KeeperError) as error:
                self._segments.act(Refuse(one.ticket, str(error)))
            self._segments.want_no_more(one)
        return len(self._placing) < len(waiting)

    def _place(self, one: _Receiving, now: float) -> bool:
        """Does it wait no more? All slots for copies have their memory, or none is used. Raises KeeperError,
        SegmentError."""
        segments = self._segments
        if segments.find(one.identity):
            segments.act(Answer(one.ticket))
            return True
        if segments.undone(one.identity):
            raise KeeperError(_UNDONE)
        one.segment = segments.to_fetch_into(one, copies_of(one.source.shard), one.source.size)
        if one.segment.table.absent():
            one.full_until = now + FULL_S
            if now >= one.tells_at:
                one.tells_at = now + TELLS_S
                segments.act(GotOn(one.ticket))
            return False
        slot = one.segment.table.acquire(one.identity)
        if slot is None:
            if now >= one.full_until:
                raise KeeperError(f"shard {one.source.shard} is still read or fetched after {FULL_S:g} s")
            return False
        one.slot, work = slot, next(segments.works)
        self._fetching[work] = one
        where = Where(one.segment.number, slot, one.source.size)
        segments.act(Fetch(work, where, one.source, ticket=one.ticket))
        return True

    def ended(self, event: Fetched | NotFetched) -> bool:
        """A fetch has ended; was it one of these?"""
        one = self._fetching.pop(event.work, None)
        if one is None:
            return False
        assert one.segment is not None
        table = one.segment.table
        why = event.refusal.why if isinstance(event, NotFetched) else ""
        if self._segments.undone(one.identity):  # The round ended meanwhile.
            why = why or _UNDONE
        if why:
            table.abandon(one.slot)
            self._segments.act(Refuse(one.ticket, why))
            return True
        table.stage(one.slot, one.source.size)
        whole = table.find(one.identity)  # Another slot when it was asked for twice at a time.
        assert whole is not None
        if not table[whole].digest:
            table.digested(whole, one.source.digest)
        self._segments.act(Answer(one.ticket))
        return True

    def next_deadline(self) -> float | None:
        """When one has waited too long, or its peer is to be told that it has not."""
        coming = [one.tells_at for one in self._placing if one.segment is not None and one.segment.table.absent()]
        return min([one.full_until for one in self._placing] + coming, default=None)

    def close(self, why: str) -> None:
        """Every wait ends; what is being fetched is refused as well."""
        for one in [*self._placing, *self._fetching.values()]:
            self._segments.act(Refuse(one.ticket, why))
        self._placing.clear()
        self._fetching.clear()
