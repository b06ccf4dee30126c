"""How often a staged state goes to the store: every N iterations, or as often as a share of the training time allows.

Staging, a copy in memory at each save, is decided elsewhere: it protects from the death of processes. The copy in the
store protects from the loss of all nodes that hold a state in memory.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

PRIOR_FAILURES, PRIOR_S = 1, 10_800.0
"""Assumed before any failure: one in three hours, as in the largest published runs (Llama 3: one stop in 3.1 h)."""
FIRST_ITERATIONS = 16
"""Iterations between copies until one was measured."""
_MEAN_WEIGHT = 0.9
"""Weight of the earlier measurements' mean when one is added."""


class Interval(NamedTuple):
    """The present interval."""

    iterations: int
    reason: str
    """In one line."""


@dataclass
class Mean:
    """The mean of measurements; the newest has most weight."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a measurement."""
        keep = min(_MEAN_WEIGHT, self.count / (self.count + 1))
        self.value = keep * self.value + (1 - keep) * value
        self.count += 1


def share_of(text: str) -> float:
    """Parse `1%` or `0.01` to 0.01, the empty string to 0. Raises ValueError unless it is a share from 0 to below 1."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1) if text else 0.0
    except ValueError:
        share = math.nan
    if not 0 <= share < 1 or (text and not share):
        raise ValueError(f"--checkpoint-overhead {text}: give a share of the time, such as 1%")
    return share


class PersistInterval:
    """Decides from the times, in seconds, that its callers pass."""

    def __init__(self, iterations: int = 50, overhead: float = 0.0) -> None:
        """Every `iterations`; with an `overhead` (0.01: one percent), as measured. Raises ValueError."""
        if iterations < 1:
            raise ValueError(f"a persist interval of {iterations} iterations; at least 1 is needed")
        if not 0 <= overhead < 1:
            raise ValueError(f"a checkpoint overhead of {overhead:g}; a share from 0 to below 1 is needed")
        self._fixed, self._overhead = iterations, overhead
        self._alone, self._beside = Mean(), Mean()
        """Seconds of an iteration while no copy to the store is running, and while one is."""
        self._copy = Mean()
        """Seconds of a copy to the store."""
        self._last: float | None = None
        self._last_iteration = 0
        self._busy = self._was_busy = False
        self._persist_began = 0.0
        self._began: float | None = None
        self._first_restart = 0
        self._failures = 0
        self._measured = False
        first = f"every {FIRST_ITERATIONS} iterations, until one was measured"
        self._interval = (
            Interval(FIRST_ITERATIONS, first) if overhead else Interval(iterations, f"every {iterations} iterations")
        )

    @property
    def interval(self) -> Interval:
        """The present interval; it changes only with a round and after a copy."""
        return self._interval

    def is_due(self, iteration: int) -> bool:
        """Whether the state after this iteration goes to the store."""
        return iteration % self._interval.iterations == 0

    def begin_round(self, restart_count: int, now: float) -> None:
        """A round begins; the job had `restart_count` rounds before."""
        if self._began is None:
            self._began, self._first_restart = now, restart_count
        self._failures = restart_count - self._first_restart
        self._last = None
        self._decide(now)

    def note_stage(self, iteration: int, now: float) -> None:
        """A state was staged: the time since the last one is the time of its iterations. Only the first of a node's
        workers counts."""
        if self._last is not None and iteration <= self._last_iteration:
            return
        if self._last is not None:
            seconds = (now - self._last) / (iteration - self._last_iteration)
            if not self._busy and not self._was_busy:
                self._alone.add(seconds)
            elif self._busy and self._was_busy:
                self._beside.add(seconds)
        self._last, self._last_iteration, self._was_busy = now, iteration, self._busy

    def note_persist_start(self, now: float) -> None:
        """A copy to the store begins."""
        self._busy, self._persist_began = True, now

    def note_persist_end(self, now: float) -> None:
        """The copy has ended, perhaps with an error."""
        self._busy = False
        self._copy.add(now - self._persist_began)
        self._decide(now)

    @property
    def cost_s(self) -> float:
        """Seconds by which a copy delays training: its duration times the share by which it lengthens iterations.

        All of its duration until an iteration beside one was measured.
        """
        if not self._beside.count or not self._alone.count:
            return self._copy.value
        slower = max(0.0, self._beside.value - self._alone.value) / max(self._beside.value, 1e-9)
        return self._copy.value * slower

    def mean_time_between_failures_s(self, now: float) -> float:
        """From this node's start to now, and the prior."""
        return (PRIOR_S + now - (self._began or now)) / (PRIOR_FAILURES + self._failures)

    def _decide(self, now: float) -> None:
        """Young's interval, sqrt(2 x cost x time between failures) (J. W. Young 1974, "A First Order Approximation to
        the Optimum Checkpoint Interval"), with Daly's correction (J. T. Daly 2006) for a cost that is not small. It is
        longer if it would exceed the overhead or be shorter than the copy itself.

        A power of two, so that nodes with different measurements still have iterations in common.
        """
        iteration = self._alone.value or self._beside.value
        if not self._overhead or not self._copy.count or not iteration:
            return
        cost, between = self.cost_s, self.mean_time_between_failures_s(now)
        best = young_daly(cost, between)
        seconds = max(best, cost / self._overhead, self._copy.value)
        iterations = 1 << math.ceil(math.log2(max(1.0, seconds / iteration)))
        if iterations != self._interval.iterations or not self._measured:
            self._measured = True
            why = (
                f"every {iterations} iterations ({iterations * iteration:.1f} s): one takes {self._copy.value:.2f} s, "
                f"holds training up by {cost:.3f} s, a failure comes every {between / 60:.0f} min; "
                f"at most {100 * self._overhead:g} % for it"
            )
            self._interval = Interval(iterations, why)


def young_daly(cost_s: float, between_s: float) -> float:
    """The interval that loses least time to copies and to repeated computation. All in seconds."""
    if cost_s >= 2 * between_s:
        return between_s
    root = math.sqrt(cost_s / (2 * between_s))
    return max(0.0, math.sqrt(2 * cost_s * between_s) * (1 + root / 3 + root * root / 9) - cost_s)
