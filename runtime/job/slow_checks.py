"""When a node counts as slow, from the seconds that its check took: for a check by itself and for one before a job."""

import math
from collections.abc import Sequence
from statistics import median

from everstep.runtime.job.nodes import NodeState

SLOW_FACTOR = 2.0
"""A slow node takes more than this many times the median, as in DLRover's network check."""


def slow_threshold_s(best_s: Sequence[float]) -> float:
    """The time above which a node is a straggler: twice the median. Of two nodes, twice the other's time.

    (With two nodes, twice the mean is at least the larger time, so by the median neither could be slow.)
    """
    if len(best_s) < 2:
        return math.inf
    return SLOW_FACTOR * (min(best_s) if len(best_s) == 2 else median(best_s))


def stragglers(nodes: Sequence[NodeState]) -> list[NodeState]:
    """The nodes whose check took more than SLOW_FACTOR times the median. Of two nodes that is neither: the figures do
    not say which of the two was disturbed."""
    checked_nodes = [node.checked for node in nodes if node.checked > 0]
    if not checked_nodes:
        return []
    limit_s = SLOW_FACTOR * median(checked_nodes)
    return [node for node in nodes if node.checked > limit_s]
