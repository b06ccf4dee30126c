"""Tells the master what speaks for and against a state that this node has staged."""

import asyncio
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping

from everstep.runtime.agent.background import Background
from everstep.runtime.agent.client import MasterClient
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import ReplayDiffers, Report

_PAUSE_S = 0.5
"""Between two posts of the same evidence."""
WINDOW, LEAST = 32, 8
"""Losses of which the median is taken, and how many there must be."""


class LossWatch:
    """The newest losses of a job, to tell one that is not sound."""

    def __init__(self) -> None:
        self._losses: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        """(Iteration, loss), sound ones, by iteration."""

    def doubt(self, iteration: int, values: Mapping[str, float | int | str], spike: float) -> str:
        """Why the iteration cannot be sound: a non-finite loss or gradient norm, or a loss above
        `spike` (0: any may be) times the median of those before. Empty: nothing speaks against it."""
        for name, value in values.items():
            if (name == "loss" or "norm" in name) and not _is_finite(value):
                return f"its {name} is {value}"
        loss = values.get("loss")
        if not isinstance(loss, float | int):
            return ""
        while self._losses and self._losses[-1][0] >= iteration:  # A round went back.
            self._losses.pop()
        median = statistics.median(loss for _, loss in self._losses) if len(self._losses) >= LEAST else 0.0
        if spike and 0 < spike * median < loss:
            return f"its loss is {loss:.4g}, above {spike:g} times the median {median:.4g} of those before"
        self._losses.append((iteration, float(loss)))
        return ""


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
        self._losses = LossWatch()
        self._against = (0, 0)
        """(Round, iteration) of the last state that something spoke against: the master ends that round."""

    def send(self, evidence: Evidence) -> None:
        """Report it until the master has compared the state, or the round is over. Called in any thread."""
        self._loop.call_soon_threadsafe(lambda: self._background.start(self._report(evidence)))

    def doubt_unless_sound(self, seat: Seat, report: Report) -> None:
        """Doubt the state of an iteration whose figures are not sound."""
        if not seat.certifies or self._against[0] == seat.round:
            return
        if doubt := self._losses.doubt(report.iteration, report.values, seat.loss_spike):
            self._send_against(Evidence(self._node, seat.round, report.iteration, doubt=doubt))

    def note_replay(self, message: ReplayDiffers) -> None:
        """Another rank got other gradients. What follows from them is staged later: this node never vouches for it."""
        if (seat := self._seat()) is not None and self._against[0] != seat.round:
            self._send_against(
                Evidence(
                    self._node, seat.round, message.iteration, replay=message.detail, wrong_ranks=message.wrong_ranks
                )
            )

    def _send_against(self, evidence: Evidence) -> None:
        self._against = evidence.round, evidence.iteration
        self.send(evidence)

    async def _report(self, evidence: Evidence) -> None:
        against_round, first = self._against
        if not evidence.is_against and evidence.round == against_round and evidence.iteration >= first:
            return
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
