"""The keeper's decisions: who may write which slot, what is held whole, what goes to the store, where a round starts
from. Pure: `handle(event, now)` -> actions, `next_deadline()`; no IO, no clock, no lock, no thread.

What an event says is taken first; then whatever can go on goes on, until nothing can: nobody waits for something that
has come already.

Invariants, over every order of events:
- A slot that is read is not written, and who reads it stands in `Segments.pins` until it ends.
- Every question is answered or refused once. It waits only for a work, a peer, the master, or the round's end.
- What is committed was persisted, what is persisted was staged: 0 <= persisted <= staged.
- The newest whole state of a rank (of a sharded one the newest two) is not let go of.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core import events
from everstep.runtime.checkpoint.node.core.events import Action, Answer, Event, Refuse, Where
from everstep.runtime.checkpoint.node.core.peer_copies import ReceivedCopies, SentCopies
from everstep.runtime.checkpoint.node.core.peer_reads import Reading
from everstep.runtime.checkpoint.node.core.persist import Persists
from everstep.runtime.checkpoint.node.core.persist_interval import Cadence
from everstep.runtime.checkpoint.node.core.round_restore import UNREACHABLE_S, RoundStart
from everstep.runtime.checkpoint.node.core.segments import LEAVING, Pin, Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import SLOTS, Identity
from everstep.runtime.checkpoint.node.core.staging import Staging
from everstep.runtime.protocol.messages import Seat

_ALL_COPIED = 3
"""A rank that stages its third state of a round knows that all have staged two and copied one to the peers of it."""
_PAST = "what this round began from is held no more: load it before the first save"
_ROUND_ENDED = "the round ended while its state was fetched"


class Phase(StrEnum):
    """What a keeper is doing; the text says why it refuses."""

    NEW = "no round has begun on this node"
    KEEPING = "it keeps"
    CLOSED = LEAVING


N, K, C = Phase
_WORK_ENDS = (
    events.Made, events.NotMade, events.Allocated, events.NotAllocated, events.Sealed, events.Checked, events.Fetched,
    events.NotFetched, events.Put, events.PeerAnswered,
)  # fmt: skip
PHASES: dict[tuple[Phase, type], Phase] = {
    (N, events.BeginRound): K,
    (K, events.BeginRound): K,
    **{(phase, kind): phase for phase in (N, K) for kind in (events.Announce, events.Acquire, events.KeepCopy)},
    **{(K, kind): K for kind in (events.Stage, events.AwaitStart, events.Flush, events.PersistNewest)},
    **{
        (phase, kind): phase
        for phase in Phase
        for kind in (
            events.BuryWorker, events.ListHoldings, events.Read, events.ReaderGone, events.Committed, events.Tick,
            *_WORK_ENDS,
        )
    },
    **{(phase, events.Close): C for phase in Phase},
}  # fmt: skip
"""Which events a phase takes, and the phase that follows. A question that is not listed is refused. A work may end in
every phase."""


@dataclass(frozen=True)
class KeeperOptions:
    """What one node's keeper is told at its start."""

    job: str
    node: str
    persist_interval: int
    """Iterations between two states that go to the store."""
    overhead: float = 0.0
    """A share of the time: with it the interval is measured (see `cadence`)."""
    workers: int = 1
    """Local ranks of this node."""
    persists: bool = True
    """Is the store there for other nodes to read?"""
    slots: int = SLOTS
    unreachable_s: float = UNREACHABLE_S


class KeeperState:
    """Of one node. Never asks for the time: each event brings its own."""

    def __init__(self, options: KeeperOptions, key_of: Callable[[Identity], str]) -> None:
        """`key_of` names a shard's object in the store."""
        self.phase = Phase.NEW
        self._options = options
        self._cadence = Cadence(options.persist_interval, options.overhead)
        self._thinned = ""
        """Why workers do not stage every iteration."""
        self._actions: list[Action] = []
        self.segments = Segments(options.slots, lambda action: self._actions.append(action))
        self._persists = Persists(self.segments, self._cadence, key_of)
        self._reading = Reading(self.segments, options.node)
        self._sent = SentCopies(self.segments, self._reading.describe)
        self._received = ReceivedCopies(self.segments)
        self._staging = Staging(self.segments, self._identity, self._sent.busy)
        self._start: RoundStart | None = None
        self._ended: list[RoundStart] = []
        """Those of earlier rounds whose works are under way."""
        self._announced: list[tuple[int, Segment]] = []
        """Tickets of those whose file is being made."""
        self._awaiting: list[events.AwaitStart] = []
        self._flushes: list[tuple[int, Identity]] = []

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from the event. Raises ValueError for one that is no question and cannot come now."""
        self._actions.clear()
        phase = PHASES.get((self.phase, type(event)))
        if phase is None:
            if not isinstance(event, events.Question):
                raise ValueError(f"{self.phase.name}: no {type(event).__name__} now")
            return [Refuse(event.ticket, self.phase.value)]
        self.phase = phase
        try:
            self._take(event, now)
        except (KeeperError, SegmentError) as error:
            assert isinstance(event, events.Question)
            self._actions.append(Refuse(event.ticket, str(error), isinstance(error, SegmentError)))
        while any(self._advance(now)):
            pass
        return list(self._actions)

    def next_deadline(self) -> float | None:
        """When to send a Tick although nothing happened; None: never."""
        deadlines = (self._received.next_deadline(), self._start.next_deadline() if self._start else None)
        return min((one for one in deadlines if one is not None), default=None)

    # What can be told at once

    @property
    def skipped(self) -> int:
        """Persists that the interval asked for and that a newer state took the place of."""
        return self._persists.skipped

    def interval(self) -> tuple[int, str]:
        """Iterations between two states that go to the store, and why so many; (0, "") where none does."""
        if not self._options.persists:
            return 0, ""
        iterations, why = self._cadence.interval
        return iterations, f"{why}; {self._thinned}" if self._thinned else why

    def near(self, local_rank: int) -> Where | None:
        """Where what that rank begins from lies, if its bytes are right."""
        return self._start.near(local_rank) if self._start else None

    def given(self, local_rank: int) -> Where | None:
        """What that worker may write now."""
        return self._staging.given(local_rank)

    # What an event says

    def _take(self, event: Event, now: float) -> None:
        match event:
            case events.BeginRound():
                self._begin(event, now)
            case events.Announce():
                self._announce(event)
            case events.Acquire():
                self._staging.ask(event, now)
            case events.Stage():
                self._stage(event, now)
            case events.BuryWorker():
                self._bury(event)
            case events.AwaitStart():
                self._awaiting.append(event)
            case events.Flush():
                self._flush(event)
            case events.PersistNewest():
                for local_rank in {segment.local_rank for segment in self.segments.of_workers()}:
                    self._persist_newest(local_rank)
                self._actions.append(Answer(event.ticket))
            case events.ListHoldings():
                self._reading.list_all(event)
            case events.KeepCopy(ticket, source):
                self._received.ask(ticket, source, now)
            case events.Read():
                self._reading.open(event)
            case events.ReaderGone(ticket):
                self._reading.gone(ticket)
            case events.Committed(identity, manifest):
                self._persists.committed(identity, manifest)
            case events.Close():
                self._close()
            case events.Tick():
                pass
            case _:
                self._end_work(event, now)

    def _end_work(self, event: events.WorkEnd, now: float) -> None:
        match event:
            case events.Made(segment):
                self.segments.made(segment)
            case events.NotMade(segment, why):
                self.segments.not_made(segment, why)
            case events.Allocated(segment, slot):
                self.segments.allocated(segment, slot)
            case events.NotAllocated(segment, why):
                self.segments.not_allocated(segment, why)
            case events.Sealed():
                self.segments.sealed(event)
            case events.Put():
                self._persists.ended(event, now)
            case events.PeerAnswered():
                self._sent.answered(event, now)
            case events.Checked():
                self._end_of_start(event, now)
            case events.Fetched() | events.NotFetched():
                if not self._received.ended(event):
                    self._end_of_start(event, now)

    def _end_of_start(self, event: events.Checked | events.Fetched | events.NotFetched, now: float) -> None:
        """A work of this round's start, or of an earlier one's."""
        for start in [*self._ended, *([self._start] if self._start else [])]:
            if start.ended(event, now):
                break
        self._ended = [start for start in self._ended if start.busy]

    def _begin(self, event: events.BeginRound, now: float) -> None:
        """A round begins, its workers are not started yet."""
        seat, restore, options = event.seat, event.seat.restore, self._options
        self._end_round()
        self._staging.begin()
        self._sent.begin(seat.peer)
        self._persists.begin(seat.round)
        self.segments.begin(seat.round, (restore.round, restore.iteration) if restore else (0, 0))

        def send(local_rank: int, pin: Pin) -> None:
            self._sent.send(local_rank, pin.segment, pin.slot, now)

        self._start = RoundStart(seat, self.segments, options.node, options.workers, options.unreachable_s, send)
        self._cadence.round(seat.restart_count, now)
        self._actions.append(Answer(event.ticket))

    def _end_round(self) -> None:
        """Nobody waits any more for what was to come in it."""
        for waiting in self._awaiting:
            self._actions.append(Refuse(waiting.ticket, _ROUND_ENDED))
        for ticket, identity in self._flushes:
            why = f"the round ended before iteration {identity.iteration} was committed"
            self._actions.append(Refuse(ticket, why))
        self._awaiting.clear()
        self._flushes.clear()
        if self._start is not None:
            self._start.end()
            self._ended += [self._start] if self._start.busy else []

    def _announce(self, event: events.Announce) -> None:
        peer = self._sent.has_peer
        segment = self.segments.for_worker(event.local_rank, event.capacity, event.sharded, peer)
        self._announced.append((event.ticket, segment))

    def _stage(self, event: events.Stage, now: float) -> None:
        """A worker's stage is whole: offer it, copy it, persist it when it is due."""
        segment, identity = self._staging.take(event)
        assert self._start is not None
        stages = self._start.staged(event.local_rank)
        self.segments.outlive_earlier(event.local_rank)
        slot = segment.table.find(identity)
        if segment.sharded and slot is not None:
            self._sent.send(event.local_rank, segment, slot, now)
        if stages == _ALL_COPIED:
            self.segments.outlive_copies(identity.round)
        self._thinned = event.thinned
        self._cadence.staged(event.iteration, now)
        due = self._cadence.due(event.iteration)
        if self._to_store(segment) and (event.persist or (due and segment.sharded)):
            self._persists.ask(
                event.local_rank, identity
            )  # All ranks put the same iterations, however slow a store is.
        elif self._to_store(segment) and due:
            self._persists.want(event.local_rank, identity)
        self._actions.append(Answer(event.ticket))

    def _bury(self, event: events.BuryWorker) -> None:
        """What the worker was writing is forgotten; its newest whole state goes to the store unasked."""
        self._staging.bury(event.local_rank)
        segment = self.segments.current(event.local_rank)
        if segment and self.phase is Phase.KEEPING and self._to_store(segment):
            self._persist_newest(event.local_rank)
        self._actions.append(Answer(event.ticket))

    def _flush(self, event: events.Flush) -> None:
        segment = self.segments.current(event.local_rank)
        if segment is None or not self._to_store(segment):
            self._actions.append(Answer(event.ticket, ""))
            return
        identity = self._identity(segment, event.iteration)
        if not self._persists.under_way(identity):
            # Not of a shard: all ranks must put the same iteration.
            identity = identity if segment.sharded else self.segments.or_newer(identity, event.local_rank)
            self._persists.ask(event.local_rank, identity)
        self._flushes.append((event.ticket, identity))

    def _persist_newest(self, local_rank: int) -> None:
        """Put the newest state of this round; of a sharded one the newest two, for a rank that was killed may have
        staged one iteration less than this one."""
        segment = self.segments.current(local_rank)
        if not self._options.persists or segment is None:
            return
        newest = self.segments.newest(local_rank, self._seat().round)
        for identity in reversed(newest[: 1 + segment.sharded]):
            if not segment.sharded:
                self._persists.want(local_rank, identity)
            elif not self._persists.under_way(identity):
                self._persists.ask(local_rank, identity)

    def _close(self) -> None:
        """Every wait ends, every file goes. Works that are under way end by themselves."""
        self._end_round()
        self._staging.refuse(LEAVING)
        self._staging.begin()
        self._sent.close()
        self._received.close(LEAVING)
        self._reading.close()
        self._persists.close()
        for ticket, _ in self._announced:
            self._actions.append(Refuse(ticket, LEAVING))
        self._announced.clear()
        self.segments.close()

    # What can go on

    def _advance(self, now: float) -> list[bool]:
        """Let everything go on that can; which did?"""
        if self.phase is Phase.CLOSED:
            return [self._reading.advance()]
        parts = (
            partial(self._start.advance, now) if self._start else bool,
            self._sent.advance,
            partial(self._persists.advance, now),
            self._reading.advance,
            self._answer_flushes,
            self._answer_starts,
            self._answer_announced,
            self.segments.remove_outlived,
            partial(self._received.advance, now),
            partial(self._staging.advance, now),
            self.segments.seal_next,
        )
        return [part() for part in parts]

    def _answer_announced(self) -> bool:
        before = self._announced
        self._announced = [(ticket, one) for ticket, one in before if not one.made and not one.broken]
        for ticket, one in before:
            if one.made:
                self._actions.append(Answer(ticket, one.number))
            elif one.broken:
                self._actions.append(Refuse(ticket, one.broken, memory=True))
        return len(self._announced) < len(before)

    def _answer_starts(self) -> bool:
        before, start = self._awaiting, self._start
        if not before or start is None:
            return False
        self._awaiting = [one for one in before if not start.answer(one.local_rank) and not start.error]
        for one in before:
            answer = start.answer(one.local_rank)
            if answer and start.is_gone(answer):
                self._actions.append(Refuse(one.ticket, _PAST))
            elif answer:
                self._actions.append(Answer(one.ticket, answer))
            elif start.error:
                self._actions.append(Refuse(one.ticket, start.error))
        return len(self._awaiting) < len(before)

    def _answer_flushes(self) -> bool:
        before = self._flushes
        self._flushes = [one for one in before if self._persists.outcome(one[1]) is None]
        for ticket, identity in before:
            if outcome := self._persists.outcome(identity):
                answer = Refuse(ticket, outcome.error) if outcome.error else Answer(ticket, outcome.manifest)
                self._actions.append(answer)
        return len(self._flushes) < len(before)

    # Of this round

    def _seat(self) -> Seat:
        if self._start is None:
            raise KeeperError(Phase.NEW.value)
        return self._start.seat

    def _identity(self, segment: Segment, iteration: int) -> Identity:
        """What a worker's stage of that iteration is in this round. Raises KeeperError before there is one."""
        seat = self._seat()
        if not segment.sharded:
            return Identity(seat.round, iteration)
        return Identity(seat.round, iteration, seat.first_rank + segment.local_rank, seat.world_size)

    def _to_store(self, segment: Segment) -> bool:
        """Does this node put what this segment holds into the store in this round?"""
        return self._options.persists and (segment.sharded or self._seat().persists)
