"""How often a staged state goes to the store: every N iterations, or so that a share of the training's time is spent.

Staging (a copy in memory) happens at each save and is not what this decides: it protects from the death of processes.
The copy in the store protects from the loss of all nodes that hold a state in memory.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

PRIOR_FAILURES, PRIOR_S = 1, 10_800.0
"""Before any was seen: one failure in three hours, as in the largest published runs (Llama 3: one stop in 3.1 h)."""
FIRST = 16
"""Iterations between copies while nothing was measured."""
_FORGETS = 0.9
"""What a new measurement leaves of the mean of the earlier ones."""


class Interval(NamedTuple):
    """What holds now."""

    iterations: int
    reason: str
    """In one line."""


@dataclass
class Mean:
    """Of measurements, the newest counting most."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """One more."""
        keep = min(_FORGETS, self.count / (self.count + 1))
        self.value = keep * self.value + (1 - keep) * value
        self.count += 1


def share_of(text: str) -> float:
    """0.01 of `1%` or `0.01`; 0 of nothing. Raises ValueError for what is no share of a whole, below all of it."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1) if text else 0.0
    except ValueError:
        share = math.nan
    if not 0 <= share < 1 or (text and not share):
        raise ValueError(f"--checkpoint-overhead {text}: give a share of the time, such as 1%")
    return share


class Cadence:
    """Seconds are the caller's; nothing here waits or reads a clock."""

    def __init__(self, iterations: int = 50, overhead: float = 0.0) -> None:
        """Every so many iterations; with `overhead` (0.01: one percent) as its measurements say. Raises ValueError."""
        if iterations < 1:
            raise ValueError(f"a persist interval of {iterations} iterations; at least 1 is needed")
        if not 0 <= overhead < 1:
            raise ValueError(f"a checkpoint overhead of {overhead:g}; a share from 0 to below 1 is needed")
        self._fixed, self._overhead = iterations, overhead
        self._alone, self._beside = Mean(), Mean()
        """Seconds of an iteration while nothing is persisted, and while something is."""
        self._taken = Mean()
        """Seconds of one copy to the store."""
        self._last: float | None = None
        self._last_iteration = 0
        self._busy = self._was_busy = False
        self._persist_began = 0.0
        self._began: float | None = None
        self._first_restart = 0
        self._failures = 0
        self._measured = False
        first = f"every {FIRST} iterations, until one was measured"
        self._told = Interval(FIRST, first) if overhead else Interval(iterations, f"every {iterations} iterations")

    @property
    def interval(self) -> Interval:
        """Changes only with a new round and after a copy."""
        return self._told

    def due(self, iteration: int) -> bool:
        """Does the state after this iteration go to the store?"""
        return iteration % self._told.iterations == 0

    def round(self, restart_count: int, now: float) -> None:
        """A round begins; `restart_count` rounds of the job came before."""
        if self._began is None:
            self._began, self._first_restart = now, restart_count
        self._failures = restart_count - self._first_restart
        self._last = None
        self._decide(now)

    def staged(self, iteration: int, now: float) -> None:
        """A state was staged: the time since the one before is what its iterations took. Of a node's workers the first
        one counts."""
        if self._last is not None and iteration <= self._last_iteration:
            return
        if self._last is not None:
            seconds = (now - self._last) / (iteration - self._last_iteration)
            if not self._busy and not self._was_busy:
                self._alone.add(seconds)
            elif self._busy and self._was_busy:
                self._beside.add(seconds)
        self._last, self._last_iteration, self._was_busy = now, iteration, self._busy

    def persisting(self, now: float) -> None:
        """A copy to the store begins."""
        self._busy, self._persist_began = True, now

    def persisted(self, now: float) -> None:
        """It is over, also when the store refused."""
        self._busy = False
        self._taken.add(now - self._persist_began)
        self._decide(now)

    @property
    def cost_s(self) -> float:
        """What one copy holds training up: its seconds, times the share by which iterations were longer beside it.

        Before an iteration beside one was seen: all of its seconds.
        """
        if not self._beside.count or not self._alone.count:
            return self._taken.value
        slower = max(0.0, self._beside.value - self._alone.value) / max(self._beside.value, 1e-9)
        return self._taken.value * slower

    def between_failures_s(self, now: float) -> float:
        """Mean time between failures, seen from this node since it began, and the prior."""
        return (PRIOR_S + now - (self._began or now)) / (PRIOR_FAILURES + self._failures)

    def _decide(self, now: float) -> None:
        """Young's interval, sqrt(2 x cost x time between failures) (J. W. Young 1974, "A First Order Approximation to
        the Optimum Checkpoint Interval"), with Daly's correction (J. T. Daly 2006) for a cost that is not small; longer
        if it would take more than the overhead, or be shorter than the copy itself.

        Iterations are a power of two: nodes that measure differently still have iterations in common.
        """
        iteration = self._alone.value or self._beside.value
        if not self._overhead or not self._taken.count or not iteration:
            return
        cost, between = self.cost_s, self.between_failures_s(now)
        best = young_daly(cost, between)
        seconds = max(best, cost / self._overhead, self._taken.value)
        iterations = 1 << math.ceil(math.log2(max(1.0, seconds / iteration)))
        if iterations != self._told.iterations or not self._measured:
            self._measured = True
            why = (
                f"every {iterations} iterations ({iterations * iteration:.1f} s): one takes {self._taken.value:.2f} s, "
                f"holds training up by {cost:.3f} s, a failure comes every {between / 60:.0f} min; "
                f"at most {100 * self._overhead:g} % for it"
            )
            self._told = Interval(iterations, why)


def young_daly(cost_s: float, between_s: float) -> float:
    """The interval that loses least to copies and to what is computed again; both in seconds, as the result."""
    if cost_s >= 2 * between_s:
        return between_s
    root = math.sqrt(cost_s / (2 * between_s))
    return max(0.0, math.sqrt(2 * cost_s * between_s) * (1 + root / 3 + root * root / 9) - cost_s)
