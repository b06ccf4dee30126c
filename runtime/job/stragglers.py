"""When a node counts as slow, from the seconds that its check took: for a check by itself and for one before a job."""

import math
import statistics
from collections.abc import Sequence

SLOW_FACTOR = 2.0
"""A slow node takes more than this many times the median, as in DLRover's network check."""


def slow_threshold_s(best_s: Sequence[float]) -> float:
    """The time above which a node is a straggler: twice the median. Of two nodes, twice the other's time.

    (With two nodes, twice the mean is at least the larger time, so by the median neither could be slow.)
    """
    if len(best_s) < 2:
        return math.inf
    return SLOW_FACTOR * (min(best_s) if len(best_s) == 2 else statistics.median(best_s))
