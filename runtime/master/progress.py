"""A job's progress for display, built from the durable state and the workers' telemetry."""

from collections.abc import Callable

import msgspec

from everstep.runtime.job.state import State
from everstep.runtime.protocol.messages import Heartbeat


class Progress(msgspec.Struct, frozen=True):
    """The job's progress, reported on every change of the round or reason and with each iteration's telemetry."""

    iteration: int
    nodes: int
    """In the running or last round."""
    round: int
    reason: str
    loss: float | None = None
    stall: float | None = None
    """Percentage of iteration time in which saving blocked training, as far as this master knows."""
    slow: str = ""
    """Who keeps the others waiting in this round, if anybody does."""


class Reporter:
    """Builds Progress from states and telemetry, and reports each change."""

    def __init__(self, tell: Callable[[Progress], None] | None, state: State) -> None:
        self._tell = tell
        self._seconds = self._stalled = 0.0
        self._last = self._progress(state, Progress(state.iteration, 0, 0, ""))

    def on_state(self, state: State) -> None:
        """Take in a new durable state."""
        self._report(self._progress(state, self._last))

    def on_telemetry(self, beat: Heartbeat) -> None:
        """Take in what a node's workers reported. Lines of other rounds than the running one are outdated."""
        iteration, loss = self._last.iteration, self._last.loss
        for line in beat.telemetry:
            at = line.get("iteration")
            if "loss" not in line or not isinstance(at, int) or line.get("round") != self._last.round:
                continue
            iteration, loss = at, _as_number(line["loss"])
            seconds = max(_as_number(line.get("seconds")) or 0.0, 0.0)
            self._seconds += seconds
            self._stalled += min(max(_as_number(line.get("stall_s")) or 0.0, 0.0), seconds)
        stall = 100 * self._stalled / self._seconds if self._seconds > 0 else None
        self._report(msgspec.structs.replace(self._last, iteration=iteration, loss=loss, stall=stall))

    def _progress(self, state: State, last: Progress) -> Progress:
        number, members = (state.round.number, state.round.members.values()) if state.round else (0, ())
        nodes = sum(len(part) for part in members)
        iteration = max(last.iteration, state.iteration)
        slow = state.slow[-1].detail if state.slow else ""
        return Progress(iteration, nodes, number, state.reason, last.loss, last.stall, slow)

    def _report(self, progress: Progress) -> None:
        if progress != self._last and self._tell:
            self._tell(progress)
        self._last = progress


def _as_number(value: object) -> float | None:
    """The value as a number; None for anything else that a script may have reported under our names."""
    return float(value) if isinstance(value, int | float) else None
