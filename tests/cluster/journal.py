"""What a job's journal tells of a fault, as its records since then have it."""

from collections.abc import Callable
from typing import Any

from everstep.runtime.job.reasons import Reason

Records = list[dict[str, Any]]


def has_fault(*reasons: Reason) -> Callable[[Records], object]:
    """A fault of one of these reasons was judged."""
    return lambda records: [
        record for record in records if record["kind"] == "FaultJudged" and record["reason"] in reasons
    ]


def lost_nodes(records: Records) -> set[str]:
    """Nodes that were lost, or announced that they have to go."""
    return {record["node"] for record in records if record["kind"] in ("NodeLost", "NodeLeaving")}


def both_lost(records: Records) -> object:
    """One alone would not have done."""
    return len(lost_nodes(records)) >= 2


def has_new_master(records: Records) -> object:
    """Another master has the job."""
    return "MasterClaimed" in [record["kind"] for record in records]


def taken_over(records: Records) -> object:
    """Another master has the job, and none of its nodes ended for it."""
    return has_new_master(records) and "NodeRequested" not in [record["kind"] for record in records]


def untouched_nodes(records: Records) -> object:
    """Nobody's round ended for it."""
    return not [record for record in records if record["kind"] in ("RoundBroken", "NodeLost")]
