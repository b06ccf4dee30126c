"""What an agent does in the background: reports to its master, while its life goes on."""

import asyncio
from collections.abc import Coroutine, Set
from typing import Any


class Background:
    """Tasks of one event loop. An exception in one of them, or `fail`, ends whoever waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start it, and do not wait for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def fail(self, error: BaseException) -> None:
        """Have `wait_for_failure` raise this, unless it raises something already."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def wait_for_failure(self) -> None:
        """Wait for the first exception, and raise it."""
        await self._failed

    async def cancel(self, but: Set[asyncio.Task[None]] = frozenset()) -> None:
        """Cancel what has not ended, and wait until it has; `but` these go on."""
        tasks = list(self._tasks - but)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)
