"""Tells the master what the keeper has found: persisted shards, sources that could not restore, digests of a state."""

import asyncio
from collections.abc import Callable
from typing import Any

from everstep.runtime.agent.background import Background
from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.dependencies import Dependencies
from everstep.runtime.agent.evidence import EvidenceReports
from everstep.runtime.agent.master_dialogue import unrestored_message
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.messages import Persisted
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.system.backoff import backoff

_COMMIT_TRIES = 24
"""Reports of the same shard, each answered within seconds, before people are told that its checkpoint is not committed.
If its round is over by then, nobody waits for the commit."""
_COMMIT_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
"""Between two reports of the same shard, until its checkpoint is committed; each pause is twice the one before."""
_WHY_NOT = "other shards are missing, or the store does not take its manifest"


class KeeperReports:
    """Makes the node's keeper, and reports what it calls back with. The callbacks come in any thread."""

    def __init__(
        self,
        node: str,
        client: MasterClient,
        background: Background,
        seat: Callable[[], Seat | None],
        run_in_thread: Callable[..., asyncio.Future[Any]],
        dependencies: Dependencies,
    ) -> None:
        """`seat` returns the seat of the round that runs; None between rounds."""
        self._node, self._client, self._background, self._seat = node, client, background, seat
        self._run_in_thread, self._say = run_in_thread, dependencies.say
        self._loop = asyncio.get_running_loop()
        self._unrestored_round = 0
        """The last round in which failed sources were reported."""
        self.pending = dict[asyncio.Task[None], Holding]()
        """Reports of persisted shards that have no answer yet."""
        self._leave_report = dependencies.leave_report
        self.evidence = EvidenceReports(node, client, background, seat, lambda event: self.keeper.note_certified(event))
        self.keeper = dependencies.make_keeper(self._on_persisted, self.on_unrestored, self.evidence.send)

    def on_unrestored(self, refusals: tuple[Refusal, ...]) -> None:
        """Report failed sources to the master, once per round. Called in any thread."""
        self._loop.call_soon_threadsafe(self._report_unrestored, refusals)

    def _report_unrestored(self, refusals: tuple[Refusal, ...]) -> None:
        if (seat := self._seat()) is not None and self._unrestored_round < seat.round:
            self._unrestored_round = seat.round
            message = unrestored_message(self._node, seat.round, refusals)
            self._background.start(self._client.report_unrestored(message))

    def _on_persisted(self, holding: Holding) -> None:
        """Report a persisted shard. Called in a thread of the keeper."""
        self._loop.call_soon_threadsafe(self._start_report, holding)

    def _start_report(self, holding: Holding) -> None:
        task = self._background.start(self._report_persisted(holding))
        self.pending[task] = holding
        task.add_done_callback(self.pending.pop)

    async def leave(self) -> None:
        """Leave in the store what no master has heard, for the next one."""
        for task, holding in list(self.pending.items()):
            task.cancel()
            try:
                await self._run_in_thread(self._leave_report, holding)
            except OSError as error:
                self._say(f"the checkpoint of iteration {holding.iteration} will not be committed: {error}")

    async def _report_persisted(self, holding: Holding) -> None:
        """Report until the checkpoint is committed, and tell the keeper so; or until it is overtaken.

        While its round runs, a worker may wait for the commit, however long the store fails for the master.
        """
        what = f"the checkpoint of iteration {holding.iteration}"
        for tries, pause_s in enumerate(backoff(_COMMIT_PAUSE_S, _LONGEST_PAUSE_S), 1):
            manifest = await self._client.report_persisted(Persisted(self._node, holding))
            if manifest is None:
                return
            if manifest:
                await self._run_in_thread(self.keeper.note_commit, holding, manifest)
                return
            if tries >= _COMMIT_TRIES and not self._is_running(holding.round):
                self._say(f"{what} was not committed: {_WHY_NOT}")
                return
            if tries == _COMMIT_TRIES:
                self._say(f"{what} is not committed yet: {_WHY_NOT}; this node keeps asking")
            await asyncio.sleep(pause_s)

    def _is_running(self, round_: int) -> bool:
        return (seat := self._seat()) is not None and seat.round == round_
