"""What a fault costs the training: `python -m tests.cluster.costs > docs/fault-costs.md`.

The page is made from what the tests of faults have told JUnit: the last `make test-cluster`, or the runs whose files
are named, with the load average of the machine (1 minute) when each was over.
"""

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.cluster.plane import SILENT_S
from tests.harness import ROOT

LAST = ROOT / ".pytest_cache/cluster.xml"
"""Where `make test-cluster` has JUnit's file."""
USUALLY_SILENT_S = 50
"""Kubernetes' own `--node-monitor-grace-period`."""
HEAD = """# What a fault costs on a cluster

One training meets all these faults, one after the other (`tests/cluster/test_faults.py`), on a real Kubernetes. It has
two pods; if the fault harms a machine, each pod has its own. One pod is enough to train, an iteration takes 0.1 s, and
each iteration is staged. etcd, the API server, both machines and MinIO share the {cores} of one computer. After each
fault, every sample has been applied exactly once.

The seconds are the longest time from the fault, or from the end of an iteration after it, to the end of the next new
one, until both pods train again. Only iterations that had already been reported count as done again; a machine without
power cannot report its last half second, and with the step's own machine up to 5 s of reports are lost. A pod that is
asked to end leaves when its replacement is ready. The other one of a pod that ran out of memory waits up to 10 s for
its replacement (`replacementWait`), where pods start as fast. The next round leaves a silent machine out, because nodes
that stand still ask each other; it counts as lost after 30 s (`patience.silence` of the job). When the step's own
machine is lost, a node stands in for the step. Kubernetes takes the machine for silent after {silent_s} s (usually
{usually_s} s). Then `everstep status` names the command that removes the step's pod; the test gives it, and Argo
retries the step, which replaces the lost node.

Two figures are the median and the worst. The load is the machine's over 1 minute, tests included.
Measured on {days}.
`python -m tests.cluster.costs > docs/fault-costs.md` writes this page after `make test-cluster` (or from JUnit files).

| what happens | seconds without a new iteration | iterations done again | times | load |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Cost:
    """Of one fault."""

    seconds: float
    """The longest time without a new iteration; without a fault it is that of one iteration."""
    lost: int
    """Iterations that had to be done again."""
    load: float = 0.0
    """Load average of the machine over 1 minute, after it."""


def cost(reports: Iterable[Mapping[str, Any]], moment: float) -> Cost:
    """Since that moment (Unix time), as the workers' reports of their iterations tell; one may be told twice. What was
    not told before it was lost with who had it, and is no standstill."""
    newest, since, longest, lost_iterations = 0, moment, 0.0, 0
    for time_s, iteration in sorted({(line["time"], line["iteration"]) for line in reports}):
        if iteration <= newest:
            lost_iterations += time_s > moment
            continue
        newest = iteration
        if time_s > moment:
            longest = max(longest, time_s - max(since, moment))
        since = time_s
    return Cost(longest, lost_iterations)


def read_costs(files: Iterable[Path]) -> dict[str, list[Cost]]:
    """By fault. Raises FileNotFoundError."""
    costs: dict[str, list[Cost]] = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            properties = {element.get("name"): element.get("value", "") for element in case.iter("property")}
            if "fault" in properties:
                cost = Cost(float(properties["seconds"]), int(properties["lost"]), float(properties["load"]))
                costs.setdefault(properties["fault"], []).append(cost)
    return costs


def read_days(files: Iterable[Path]) -> list[str]:
    """On which the tests ran, in their order. Raises FileNotFoundError."""
    suites = (suite for file in files for suite in ElementTree.parse(file).iter("testsuite"))
    return sorted({suite.attrib["timestamp"].partition("T")[0] for suite in suites})


def page(costs: Mapping[str, Sequence[Cost]], days: Sequence[str], cores: int) -> str:
    """A line for each fault; of several times the median and the worst, and the range of the loads."""
    head = HEAD.format(cores=f"{cores} cores", days=" and ".join(days), silent_s=SILENT_S, usually_s=USUALLY_SILENT_S)
    return head + "".join(_line(fault, each) for fault, each in costs.items())


def _line(fault: str, each: Sequence[Cost]) -> str:
    loads = sorted({f"{cost.load:.0f}" for cost in each}, key=int)
    load = loads[0] if len(loads) == 1 else f"{loads[0]} to {loads[-1]}"
    seconds, lost_iterations = _of([cost.seconds for cost in each], ".1f"), _of([cost.lost for cost in each], ".0f")
    return f"| {fault} | {seconds} | {lost_iterations} | {len(each)} | {load} |\n"


def _of(figures: Sequence[float], form: str) -> str:
    middle, worst = format(statistics.median(figures), form), format(max(figures), form)
    return middle if middle == worst else f"{middle}, {worst}"


def main(words: Sequence[str]) -> str:
    """The page of these files, its lines in the order of `FAULTS`."""
    import psutil

    from tests.cluster.faults import FAULTS

    files = [Path(word) for word in words] or [LAST]
    costs = read_costs(files)
    ordered = {fault: costs[fault] for fault in FAULTS if fault in costs}
    return page(ordered, read_days(files), psutil.cpu_count() or 1)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]), end="")
    except FileNotFoundError as error:
        print(f"costs: {error.filename}: no such file; make test-cluster writes it", file=sys.stderr)
        sys.exit(2)
