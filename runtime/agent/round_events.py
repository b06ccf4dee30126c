"""What ends a round on this node, in order: ends of workers, and what the master says; which end is the cause."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.job.error_kinds import is_echo

_ECHO_S = 0.5
"""So long the end of a worker that lost its connection waits for the end of the sibling that broke it."""


@dataclass(frozen=True)
class RoundOver:
    """The master says that this round and all earlier ones are over."""

    round: int
    reason: str
    ends_iteration: bool = False
    """Workers that can leave a round end their iteration first."""


@dataclass(frozen=True)
class NodeFailure:
    """What failed on this node in a round."""

    cause: WorkerEnd
    """The first end that follows from no other; if all do, the first."""
    failed: frozenset[int]
    """The local ranks known to have failed by an error of their own, not by the end of another."""


class RoundEvents:
    """The events that were not handled yet."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[WorkerEnd | RoundOver] = asyncio.Queue()

    def put(self, event: WorkerEnd | RoundOver) -> None:
        """Add one."""
        self._queue.put_nowait(event)

    async def next(self) -> WorkerEnd | RoundOver:
        """Wait for the next one."""
        return await self._queue.get()

    def failure_in(self, round_: int) -> NodeFailure | None:
        """What failed by the queued ends of that round's workers: it may be why the round broke. Empties the queue."""
        ends = self._take_failures(round_)
        return _failure_of(ends) if ends else None

    async def failure_from(self, end: WorkerEnd, running: int) -> NodeFailure:
        """What failed with this end. If it follows from another's, waits for the end of a sibling that does not: it may
        still print its traceback.

        `running`: how many siblings have not ended.
        """
        ends = [end]
        with suppress(TimeoutError):
            async with asyncio.timeout(_ECHO_S):
                while running and not _own_failures(ends):
                    event = await self.next()
                    if isinstance(event, RoundOver):
                        self.put(event)
                        break
                    running -= 1
                    ends += [event] if event.exit_code else []
        return _failure_of(ends + self._take_failures(end.round))

    def _take_failures(self, round_: int) -> list[WorkerEnd]:
        """The queued ends of that round's workers that failed. The queue is empty afterwards."""
        ends = list[WorkerEnd]()
        while not self._queue.empty():
            event = self._queue.get_nowait()
            if isinstance(event, WorkerEnd) and event.round == round_ and event.exit_code:
                ends.append(event)
        return ends


def _own_failures(ends: Sequence[WorkerEnd]) -> list[WorkerEnd]:
    return [end for end in ends if not is_echo(end.error, end.exit_code)]


def _failure_of(ends: Sequence[WorkerEnd]) -> NodeFailure:
    own = _own_failures(ends)
    return NodeFailure((own or ends)[0], frozenset(end.local_rank for end in own))
