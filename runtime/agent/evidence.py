"""Tells the master what speaks for and against a state that this node has staged."""

import asyncio
import math
from collections.abc import Callable

from everstep.runtime.agent.background import Background
from everstep.runtime.agent.client import MasterClient
from everstep.runtime.protocol.messages import Evidence, Seat
from everstep.runtime.protocol.worker_link import Report

_PAUSE_S = 0.5
"""Between two posts of the same evidence."""


class EvidenceReports:
    """The evidence of one agent, on its event loop."""

    def __init__(
        self,
        node: str,
        client: MasterClient,
        background: Background,
        seat: Callable[[], Seat | None],
        on_certified: Callable[[Evidence], None],
    ) -> None:
        """`on_certified` is called for each state that the master has found sound."""
        self._node, self._client, self._background = node, client, background
        self._seat, self._on_certified = seat, on_certified
        self._loop = asyncio.get_running_loop()
        self._doubted_round = 0
        """The last round of which a state was doubted: the master ends it."""

    def send(self, evidence: Evidence) -> None:
        """Report it until the master has compared the state, or the round is over. Called in any thread."""
        self._loop.call_soon_threadsafe(lambda: self._background.start(self._report(evidence)))

    def doubt_unless_finite(self, seat: Seat, report: Report) -> None:
        """Doubt the state of an iteration whose loss, or norm of the gradient, is no finite number."""
        if not seat.certifies or self._doubted_round == seat.round:
            return
        for name, value in report.values.items():
            if (name == "loss" or "norm" in name) and not _is_finite(value):
                self._doubted_round = seat.round
                self.send(Evidence(self._node, seat.round, report.iteration, doubt=f"its {name} is {value}"))
                return

    async def _report(self, evidence: Evidence) -> None:
        while (seat := self._seat()) is not None and seat.round == evidence.round:
            if await self._client.report_evidence(evidence):
                self._on_certified(evidence)
                return
            await asyncio.sleep(_PAUSE_S)


def _is_finite(value: float | int | str) -> bool:
    """A worker writes what JSON cannot carry as text."""
    try:
        return math.isfinite(float(value))
    except ValueError:
        return True  # Not a number at all: some text of the script's.
