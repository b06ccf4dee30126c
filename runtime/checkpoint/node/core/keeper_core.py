"""The keeper's decisions: who may write which slot, which states are complete, what goes to the store, and what a round
starts from. `KeeperCore.table` says what each event does; `handle(event, now)` returns the actions that follow.

The event changes one part of the core. Then every part goes on as far as it can, until none can, so nobody waits for
something that has already happened.

Invariants, over every order of events:
- A slot that is read is not written, and each of its readers is in `Segments.pins` until it ends.
- Every question is answered or refused once. It waits only for work, a peer, the master, or the end of the round.
- A state that is compared is not written until the verdict, nor is the newest certified one until a newer is.
- A committed state was persisted, and a persisted one was staged: 0 <= persisted <= staged.
- Of the states that were staged in a rank's segments or fetched into them, the newest is not overwritten; of a sharded
  state the newest two.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core import events
from everstep.runtime.checkpoint.node.core.actions import Action, Location
from everstep.runtime.checkpoint.node.core.certify import Certification
from everstep.runtime.checkpoint.node.core.digest_queue import DigestQueue
from everstep.runtime.checkpoint.node.core.events import Event, Question
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.core.peer_copies import ReceivedCopies, SentCopies
from everstep.runtime.checkpoint.node.core.peer_reads import PeerReads
from everstep.runtime.checkpoint.node.core.persist import PersistQueue
from everstep.runtime.checkpoint.node.core.round_restore import RoundRestore
from everstep.runtime.checkpoint.node.core.segments import Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.staging import Staging
from everstep.runtime.checkpoint.node.core.transaction import Transaction

_ALL_COPIED = 3
"""When a rank stages its third state of a round, all ranks have staged two and copied one to this round's peers."""


class Phase(StrEnum):
    """What a keeper is doing; the text is why it refuses a question."""

    NEW = "no round has started on this node"
    KEEPING = "it keeps"
    CLOSED = "this node is leaving"


N, K, C = Phase


class Rule(NamedTuple):
    """What an event does."""

    phases: set[Phase]
    """In any other phase the event, a question, is refused."""
    handle: Callable[[Any], None]


class KeeperCore:
    """The decisions of one node. Never asks for the time: each event brings its own."""

    def __init__(self, options: KeeperOptions, key_of: Callable[[Identity, str], str]) -> None:
        """`key_of` names a shard's object in the store; with a digest if that is part of the name."""
        self.phase = Phase.NEW
        self._persists = options.persists
        self._thinned = ""
        """Why workers do not stage every iteration; empty if they do."""
        self._tx = tx = Transaction()
        self.segments = segments = Segments(tx)
        self._digests = DigestQueue(tx, segments)
        self._reads = PeerReads(tx, segments, options.node)
        self._sent_copies = SentCopies(tx, segments, self._reads)
        self._received = ReceivedCopies(tx, segments)
        self._staging = Staging(tx, segments, self._sent_copies)
        self._queue = PersistQueue(tx, segments, options, key_of)
        self._restore = RoundRestore(tx, segments, options, self._sent_copies)
        self._certification = Certification(tx, segments)
        self._parts = (
            self._restore, self._sent_copies, self._queue, self._reads, segments, self._received, self._staging,
            self._digests, self._certification,
        )  # fmt: skip
        self.table: dict[type, Rule] = {
            # Questions
            events.BeginRound: Rule({N, K}, self._begin_round),
            events.Announce: Rule({N, K}, self._staging.announce),
            events.Acquire: Rule({K}, self._staging.acquire),
            events.CommitStage: Rule({K}, self._commit_stage),
            events.WaitForRestore: Rule({K}, self._restore.wait),
            events.Flush: Rule({K}, self._queue.flush),
            events.PersistNewest: Rule({K}, self._queue.persist_newest),
            events.Drain: Rule({N, K}, self._queue.drain),
            events.CopyShard: Rule({N, K}, self._received.copy_shard),
            events.ListHoldings: Rule({N, K, C}, self._reads.list_holdings),
            events.OpenShard: Rule({N, K, C}, self._reads.open_shard),
            # Facts
            events.WorkerDied: Rule({N, K, C}, self._end_worker),
            events.ReaderGone: Rule({N, K, C}, self._reads.close_shard),
            events.CheckpointCommitted: Rule({N, K, C}, self._queue.note_commit),
            events.StateCertified: Rule({N, K, C}, self._certification.note_verdict),
            events.Tick: Rule({N, K, C}, lambda _: None),
            events.NodeLeaving: Rule({N, K, C}, self._close),
            # Ends of work, which may be under way in every phase
            events.SegmentMade: Rule({N, K, C}, segments.end_making),
            events.AllocationEnded: Rule({N, K, C}, segments.end_allocation),
            events.DigestEnded: Rule({N, K, C}, self._digests.end),
            events.CheckEnded: Rule({N, K, C}, self._restore.end_check),
            events.FetchEnded: Rule({N, K, C}, self._end_fetch),
            events.PutEnded: Rule({N, K, C}, self._queue.end_put),
            events.PeerCopyEnded: Rule({N, K, C}, self._sent_copies.end_copy),
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from the event. `now` in seconds, of any clock that does not go back."""
        self._tx.begin(now)
        rule = self.table[type(event)]
        try:
            if self.phase not in rule.phases:
                raise KeeperError(self.phase.value)
            rule.handle(event)
        except (KeeperError, SegmentError) as error:
            assert isinstance(event, Question)
            self._tx.refuse(event.ticket, error)
        parts = self._parts if self.phase is not Phase.CLOSED else (self._reads,)
        while any(part.advance() for part in parts):
            pass
        return self._tx.actions

    def next_deadline(self) -> float | None:
        """When to send a Tick although nothing has happened; None: never."""
        parts = (self._received, self._restore, self._queue)
        deadlines = (part.next_deadline() for part in parts)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # What can be read between two events

    @property
    def skipped(self) -> int:
        """Persists of the interval that a newer state replaced."""
        return self._queue.skipped

    def interval(self) -> tuple[int, str]:
        """Iterations between two states that go to the store, and the reason; (0, "") if none goes there."""
        if not self._persists:
            return 0, ""
        iterations, reason = self._queue.interval.interval
        return iterations, f"{reason}; {self._thinned}" if self._thinned else reason

    def expected_location(self, local_rank: int) -> Location | None:
        """Where the state that the rank starts from is, or will be if its bytes are right."""
        return self._restore.expected_location(local_rank)

    def writable_slot(self, local_rank: int) -> Location | None:
        """The slot that the worker may write now."""
        return self._staging.writable_slot(local_rank)

    # Events that concern several parts

    def _begin_round(self, event: events.BeginRound) -> None:
        self.phase = Phase.KEEPING
        for part in (self._staging, self._sent_copies, self._queue, self.segments, self._certification, self._restore):
            part.begin(event.seat)
        self._tx.answer(event.ticket)

    def _commit_stage(self, event: events.CommitStage) -> None:
        """A worker's stage is complete: offer it, copy it, persist it if it is due."""
        segment, identity = self._staging.commit(event)
        stages = self._restore.note_stage(event.local_rank)
        self.segments.supersede_earlier(event.local_rank)
        slot = segment.table.find(identity)
        if segment.sharded and slot is not None:
            self._sent_copies.send(event.local_rank, segment, slot)
        if stages == _ALL_COPIED:
            self.segments.supersede_copies(identity.round)
        self._thinned = event.thinned
        self._certification.note_stage(segment, identity)
        self._queue.note_stage(segment, identity, event.persist)
        self._tx.answer(event.ticket)

    def _end_worker(self, event: events.WorkerDied) -> None:
        """Forget what the worker was writing; persist its newest state unasked."""
        self._staging.end_worker(event.local_rank)
        if self.phase is Phase.KEEPING:
            self._queue.note_death(event.local_rank)

    def _end_fetch(self, event: events.FetchEnded) -> None:
        if not self._received.end_fetch(event):
            self._restore.end_fetch(event)

    def _close(self, _: events.NodeLeaving) -> None:
        """Every wait ends and every file goes. Work that is under way goes on to its end."""
        self.phase = Phase.CLOSED
        self._restore.end_round()
        self._staging.close(Phase.CLOSED)
        self._sent_copies.close()
        self._received.close(Phase.CLOSED)
        self._reads.close()
        self._queue.close()
        self._certification.close()
        self.segments.close()
