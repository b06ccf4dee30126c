"""How long a training stood still after each fault, from what its workers reported."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.runtime.chaos import FiredFault

AFTER_S = 1.0
"""The consequences of a fault begin at most this long after it has ended."""


@dataclass(frozen=True)
class Recovery:
    """A fault and what it cost."""

    fired: FiredFault
    how: str
    seconds: float
    """The longest time without a new iteration that it can have caused, from the fault on."""


def new_iterations(telemetry: Iterable[Mapping[str, Any]]) -> list[float]:
    """When each iteration was finished that was newer than all before."""
    newest, moments = 0, []
    for line in telemetry:
        if "loss" in line and line["iteration"] > newest:
            newest = line["iteration"]
            moments.append(line["time"])
    return moments


def standstill(moments: Sequence[float], begin: float, end: float) -> float:
    """The longest gap between two moments of which a part lies between `begin` and `end`, as far as it is after
    `begin`. Raises ValueError if nothing came after `end`."""
    if not moments or moments[-1] <= end:
        raise ValueError("no iteration was finished after the fault")
    gaps = zip([float("-inf"), *moments], moments, strict=False)
    return max(later - max(sooner, begin) for sooner, later in gaps if later > begin and sooner < end)


def table(recoveries: Sequence[Recovery]) -> str:
    """By kind: how many, median and longest."""
    kinds = dict.fromkeys(recovery.fired.kind for recovery in recoveries)
    lines = ["| fault | times | median | longest |", "|---|---|---|---|"]
    for kind in sorted(kinds):
        seconds = [recovery.seconds for recovery in recoveries if recovery.fired.kind is kind]
        lines.append(f"| {kind} | {len(seconds)} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |")
    return "\n".join(lines)
