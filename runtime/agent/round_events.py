"""What ends a round on this node, in order: ends of workers, and what the master says; which end is the cause."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from everstep.runtime.agent.workers import WorkerEnd
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

    def first_failure_in(self, round_: int) -> WorkerEnd | None:
        """The first failure among the queued worker exits, which are all taken out: it may be why the round broke."""
        while not self._queue.empty():
            event = self._queue.get_nowait()
            if isinstance(event, WorkerEnd) and event.round == round_ and event.exit_code:
                return event
        return None

    async def first_cause(self, end: WorkerEnd, running: int) -> WorkerEnd:
        """This end; if it follows from another's, the end of a sibling that does not: it may still print its traceback.

        `running`: how many siblings have not ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_ECHO_S):
                while running and is_echo(end.error, end.exit_code):
                    event = await self.next()
                    if isinstance(event, RoundOver):
                        self.put(event)
                        break
                    running -= 1
                    if event.exit_code and not is_echo(event.error, event.exit_code):
                        return event
        return end
