"""Which rank is slow, from how long each waits for the others. Pure.

In data-parallel training all ranks take the same time per iteration: fast ones wait in collectives for the slow one.
A rank's own time is what it does not spend there.
"""

from collections.abc import Sequence
from statistics import median, median_low
from typing import NamedTuple

from everstep.runtime.watch.board import Board
from everstep.runtime.watch.merge import fold_ranks

SLOW_FACTOR = 1.5
"""A straggler's own time is more than this many times the median of all."""
_FEWEST_SAMPLES = 10


class Pace(NamedTuple):
    """A rank's times over a window."""

    rank: int
    iterations: int
    waited: float
    """Share of the window that it spent in collectives, 0 to 1."""
    own_s: float
    """Seconds per iteration outside of collectives; 0: it finished none, or too little is known."""


def pace(before: Board, after: Board, seconds: float) -> Pace:
    """The times of a rank between two readings of its board, `seconds` apart."""
    iterations, samples = after.iteration - before.iteration, after.samples - before.samples
    if before.pid != after.pid or iterations < 1 or samples < _FEWEST_SAMPLES:
        return Pace(after.rank, max(iterations, 0), 0.0, 0.0)
    waited = min(max((after.waits - before.waits) / samples, 0.0), 1.0)
    return Pace(after.rank, iterations, waited, (1 - waited) * seconds / iterations)


def slow_ranks(paces: Sequence[Pace]) -> list[Pace]:
    """The ranks whose own time is more than SLOW_FACTOR times the median of all: never more than half of them.

    The median is the lower one, so that of two ranks one can be slow.
    """
    known = [one for one in paces if one.own_s > 0]
    if not known:
        return []
    usual = median_low(one.own_s for one in known)
    return [one for one in known if one.own_s > SLOW_FACTOR * usual]


def sentence(paces: Sequence[Pace]) -> str:
    """Who is slow, in one line; empty: nobody."""
    slow = slow_ranks(paces)
    if not slow:
        return ""
    worst = max(slow, key=lambda one: one.own_s)
    others = median(one.own_s for one in paces if one.own_s > 0 and one not in slow) if len(slow) < len(paces) else 0.0
    who = f"rank {slow[0].rank} is" if len(slow) == 1 else f"ranks {fold_ranks(one.rank for one in slow)} are"
    return f"{who} slow: {worst.own_s:.3g} s of its own per iteration, the others {others:.3g} s and wait for it"
