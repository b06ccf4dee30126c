"""Who may write which slot: workers ask for one, write a state into it, and say that it is whole. Pure: no IO.

Invariant: of each local rank at most one slot is being written, and nobody reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from everstep.runtime.checkpoint.errors import KeeperError
from everstep.runtime.checkpoint.node.core.events import Acquire, Answer, Granted, Refuse, Stage, Where
from everstep.runtime.checkpoint.node.core.segments import Segment, Segments
from everstep.runtime.checkpoint.node.core.slots import Identity


@dataclass
class _Waiting:
    """An Acquire that has no slot yet."""

    asked: Acquire
    since: float
    """When somebody looked last."""
    coming: bool = False
    """Was memory still being allocated then?"""
    waited_s: float = 0.0
    """For memory."""


class Staging:
    """Of the workers of one node."""

    def __init__(
        self,
        segments: Segments,
        identity_of: Callable[[Segment, int], Identity],
        held_up: Callable[[int], bool],
    ) -> None:
        """`identity_of` tells what a stage of that iteration is in this round (KeeperError before there is one),
        `held_up` whether that local rank may not stage yet."""
        self._segments, self._identity_of, self._held_up = segments, identity_of, held_up
        self._writing: dict[int, tuple[Segment, int]] = {}
        """By local rank."""
        self._waiting: list[_Waiting] = []

    def given(self, local_rank: int) -> Where | None:
        """What that worker may write now: all bytes of the slot."""
        if local_rank not in self._writing:
            return None
        segment, slot = self._writing[local_rank]
        return Where(segment.number, slot, segment.capacity)

    def ask(self, asked: Acquire, now: float) -> None:
        """A worker wants a slot. Raises KeeperError when it will never have one."""
        waiting = _Waiting(asked, now)
        if not self._grant(waiting, now):
            if asked.waits:
                self._waiting.append(waiting)
            else:
                self._segments.act(Answer(asked.ticket))

    def advance(self, now: float) -> bool:
        """Grant what can be granted; was there any?"""
        before, self._waiting = self._waiting, []
        for waiting in before:
            try:
                if not self._grant(waiting, now):
                    self._waiting.append(waiting)
            except KeeperError as error:
                self._segments.act(Refuse(waiting.asked.ticket, str(error)))
        return len(self._waiting) < len(before)

    def _grant(self, waiting: _Waiting, now: float) -> bool:
        """Is there a slot for it now? Raises KeeperError when there will be none."""
        asked = waiting.asked
        segment = self._segments.current(asked.local_rank)
        if segment is None or not segment.slots:
            raise KeeperError(f"worker {asked.local_rank} has announced no state to stage")
        waiting.waited_s += now - waiting.since if waiting.coming else 0.0
        waiting.since, waiting.coming = now, bool(segment.table.absent())
        if self._held_up(asked.local_rank):
            return False
        self._abandon(asked.local_rank)
        slot = segment.table.acquire(self._identity_of(segment, asked.iteration))
        if slot is None:
            if segment.broken:
                raise KeeperError(segment.broken)
            return False
        self._writing[asked.local_rank] = (segment, slot)
        where = Where(segment.number, slot, segment.capacity)
        self._segments.act(Answer(asked.ticket, Granted(where, waiting.waited_s)))
        return True

    def take(self, stage: Stage) -> tuple[Segment, Identity]:
        """What a worker has written is whole. Raises KeeperError when it is not what it was granted, or no shard."""
        segment, slot = self._writing.get(stage.local_rank, (None, -1))
        if segment is None or slot != stage.slot or stage.size > segment.capacity:
            raise KeeperError(f"slot {stage.slot} is not what worker {stage.local_rank} was given to write")
        if stage.flaw:
            raise KeeperError(f"iteration {stage.iteration} of worker {stage.local_rank}: {stage.flaw}")
        identity = self._identity_of(segment, stage.iteration)
        if segment.table[slot].identity != identity:
            raise KeeperError(f"slot {slot} was given to worker {stage.local_rank} for another iteration")
        del self._writing[stage.local_rank]
        segment.table.stage(slot, stage.size)
        return segment, identity

    def bury(self, local_rank: int) -> None:
        """That worker is dead: what it was writing is forgotten, what it waited for is not granted."""
        self._abandon(local_rank)
        self.refuse(f"worker {local_rank} died while it waited for a slot", local_rank)

    def begin(self) -> None:
        """A round begins; no worker of the one before is alive."""
        for local_rank in list(self._writing):
            self._abandon(local_rank)
        for waiting in list(self._waiting):
            self.bury(waiting.asked.local_rank)

    def refuse(self, why: str, local_rank: int | None = None) -> None:
        """End the waits of that worker; None: all."""
        ended = [one for one in self._waiting if local_rank in (None, one.asked.local_rank)]
        self._waiting = [one for one in self._waiting if one not in ended]
        for one in ended:
            self._segments.act(Refuse(one.asked.ticket, why))

    def _abandon(self, local_rank: int) -> None:
        if local_rank in self._writing:
            segment, slot = self._writing.pop(local_rank)
            segment.table.abandon(slot)
