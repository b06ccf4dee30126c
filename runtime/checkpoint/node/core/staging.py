"""Who may write which slot. Workers announce their state, get a slot, write a state into it and commit the stage.

Invariant: each local rank writes at most one slot, and nobody reads that slot.
"""

from dataclasses import dataclass

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core.actions import Location, SlotGrant
from everstep.runtime.checkpoint.node.core.events import Acquire, Announce, CommitStage
from everstep.runtime.checkpoint.node.core.peer_copies import SentCopies
from everstep.runtime.checkpoint.node.core.segments import Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.rounds import Seat


@dataclass
class _Waiting:
    """An Acquire without a slot so far."""

    question: Acquire
    since: float
    """Time of the last attempt."""
    allocating: bool = False
    """Memory was still being allocated then."""
    waited_s: float = 0.0
    """For memory."""


class Staging:
    """The stages of one node's workers."""

    def __init__(self, tx: Transaction, segments: Segments, sent_copies: SentCopies) -> None:
        self._tx, self._segments, self._sent_copies = tx, segments, sent_copies
        self._announced: list[tuple[Announce, Segment]] = []
        """Those that are not answered: the segment has no file yet, or not all memory that was to be waited for."""
        self._writing: dict[int, tuple[Segment, int]] = {}
        """Segment and slot by local rank."""
        self._waiting: list[_Waiting] = []

    def writable_slot(self, local_rank: int) -> Location | None:
        """The slot that the worker may write now."""
        if local_rank not in self._writing:
            return None
        segment, slot = self._writing[local_rank]
        return Location(segment.number, slot, segment.capacity)

    def announce(self, event: Announce) -> None:
        """Find or make the worker's segment."""
        segment = self._segments.get_for_worker(event.local_rank, event.capacity, event.sharded)
        self._announced.append((event, segment))

    def acquire(self, event: Acquire) -> None:
        """Grant a slot, now or later. Raises KeeperError if there will be none."""
        waiting = _Waiting(event, self._tx.now)
        if self._grant(waiting):
            return
        if event.waits:
            self._waiting.append(waiting)
        else:
            self._tx.answer(event.ticket)

    def advance(self) -> bool:
        """Answer every question that can be answered. Returns whether there was one."""
        before = len(self._announced) + len(self._waiting)
        self._answer_announced()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            try:
                if not self._grant(request):
                    self._waiting.append(request)
            except KeeperError as error:
                self._tx.refuse(request.question.ticket, error)
        return len(self._announced) + len(self._waiting) < before

    def _answer_announced(self) -> None:
        announced, self._announced = self._announced, []
        for event, segment in announced:
            allocates = event.waits and segment.table.absent() and not segment.error
            if self._segments.get(segment.number) is None:
                why = segment.error or f"worker {event.local_rank} has announced another state"
                self._tx.refuse(event.ticket, SegmentError(why))
            elif segment.has_file and not allocates:
                self._tx.answer(event.ticket, segment.number)
            else:
                self._announced.append((event, segment))

    def _grant(self, waiting: _Waiting) -> bool:
        """Returns whether there is a slot now. Raises KeeperError if there will be none."""
        question, now = waiting.question, self._tx.now
        segment = self._segments.current(question.local_rank)
        if segment is None or not segment.slots:
            raise KeeperError(f"worker {question.local_rank} has announced no state to stage")
        waiting.waited_s += now - waiting.since if waiting.allocating else 0.0
        waiting.since, waiting.allocating = now, bool(segment.table.absent())
        if self._sent_copies.is_busy(question.local_rank):
            return False
        self._abandon(question.local_rank)
        slot = segment.table.acquire(self._segments.identify(segment, question.iteration))
        if slot is None:
            if segment.error:
                raise KeeperError(segment.error)
            return False
        self._writing[question.local_rank] = (segment, slot)
        location = Location(segment.number, slot, segment.capacity)
        self._tx.answer(question.ticket, SlotGrant(location, waiting.waited_s))
        return True

    def commit(self, event: CommitStage) -> tuple[Segment, Identity]:
        """The state that the worker has written is complete. Raises KeeperError if it was not granted that slot for
        that iteration, or the bytes are no shard."""
        segment, slot = self._writing.get(event.local_rank, (None, -1))
        if segment is None or slot != event.slot or event.size > segment.capacity:
            raise KeeperError(f"slot {event.slot} is not what worker {event.local_rank} was given to write")
        if event.flaw:
            raise KeeperError(f"iteration {event.iteration} of worker {event.local_rank}: {event.flaw}")
        identity = self._segments.identify(segment, event.iteration)
        if segment.table[slot].identity != identity:
            raise KeeperError(f"slot {slot} was given to worker {event.local_rank} for another iteration")
        del self._writing[event.local_rank]
        segment.table.stage(slot, event.size)
        return segment, identity

    def end_worker(self, local_rank: int) -> None:
        """The worker is dead: forget what it was writing, and refuse it a slot."""
        self._abandon(local_rank)
        self._refuse_waiting(f"worker {local_rank} died while it waited for a slot", {local_rank})

    def begin(self, _: Seat) -> None:
        """A round begins; no worker of the one before is alive."""
        for local_rank in {*self._writing, *(waiting.question.local_rank for waiting in self._waiting)}:
            self.end_worker(local_rank)

    def close(self, why: str) -> None:
        """End every wait."""
        for event, _ in self._announced:
            self._tx.refuse(event.ticket, KeeperError(why))
        self._announced.clear()
        self._refuse_waiting(why, {waiting.question.local_rank for waiting in self._waiting})
        for local_rank in list(self._writing):
            self._abandon(local_rank)

    def _refuse_waiting(self, why: str, local_ranks: set[int]) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if request.question.local_rank in local_ranks:
                self._tx.refuse(request.question.ticket, KeeperError(why))
            else:
                self._waiting.append(request)

    def _abandon(self, local_rank: int) -> None:
        if local_rank in self._writing:
            segment, slot = self._writing.pop(local_rank)
            segment.table.abandon(slot)
