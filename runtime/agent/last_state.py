"""Has the newest state of this node in the store: before it leaves, or says that its workers have finished."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from everstep.runtime.agent.keeper_reports import KeeperReports
from everstep.runtime.agent.settings import Settings

_LAST_STATE_S = 13.0
"""How long a node that was told to leave may take; then the platform ends it."""
_COMMIT_S = 5.0
"""How long to wait for the commit of a stored state: other nodes' shards of that iteration may be missing."""


class LastState:
    """The newest state that the workers of a node have staged."""

    def __init__(
        self,
        reports: KeeperReports,
        settings: Settings,
        address: str,
        run_in_thread: Callable[..., asyncio.Future[Any]],
        wait_for_stages: Callable[[], Coroutine[Any, Any, None]],
        say: Callable[[str], None],
    ) -> None:
        """`address`: the agent's own; `wait_for_stages`: until each worker has staged one more state."""
        self._keeper, self._settings, self._address = reports.keeper, settings, address
        self._reports, self._run_in_thread, self._say = reports, run_in_thread, say
        self._wait_for_stages = wait_for_stages

    async def persist(self) -> None:
        """Start copying it to the store, while the workers train on."""
        if self._settings.persists:
            await self._run_in_thread(self._keeper.persist_newest)

    async def save(self, round_: int) -> None:
        """Persist the newest state of that round, which goes on, and wait for its commit if possible."""
        holdings = await self._run_in_thread(self._keeper.holdings, self._address)
        newest = max((h for h in holdings if h.round == round_), key=lambda h: h.iteration, default=None)
        if newest is not None and newest.shards > 1:
            await self.persist()  # The other nodes persist their shards on a directive.
        elif newest is not None and self._settings.persists:
            try:
                await self._run_in_thread(self._keeper.flush, newest.index, newest.iteration)
            except (RuntimeError, OSError) as error:
                self._say(str(error))

    async def stage(self) -> None:
        """The job is over and the workers are about to be ended: let them stage the iteration that they compute, if it
        ends within their grace period."""
        self._keeper.want_stages()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.grace_s):
                await self._wait_for_stages()

    async def store(self) -> None:
        """The workers have ended: have what they staged last in the store, and the master told.

        So a script need not call `finish`, and a job that was stopped goes on from here.
        """
        for local_rank in range(self._settings.slots):
            self._keeper.worker_died(local_rank)  # Its newest state goes to the store.
        with suppress(RuntimeError):  # The node is leaving already.
            await self._run_in_thread(self._keeper.drain)
        if pending := self._reports.pending.keys():
            await asyncio.wait(pending, timeout=_COMMIT_S)
            await self._reports.leave()

    async def store_in_time(self) -> None:
        """The same for a node that was told to leave."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_STATE_S):
                await self.store()
