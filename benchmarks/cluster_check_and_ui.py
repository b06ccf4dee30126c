"""Lines of `make accept-cluster`: the check of machines, the recorded answers of Argo 4.1, and what its UI shows."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.acceptance import Cases, Line, has_passed
from tests.datasets import write_dataset
from tests.workflow.different import DIFFERENT
from tests.workflow.test_golden import CASES

CHECK_BUDGET_S = 10.0
"""What the train step's own check may cost where it is on by default."""
PAIRS = 3
FACE, CHECK, REPORT, SUBMISSION = "tests/face/", "tests/check/", "tests/report/", "tests/submission/"

ON_A_CLUSTER = {
    "check: the pods that were checked become the training's, on a real cluster": ["test_argo.py::the_pipeline"],
    "Argo: nothing empty among the submitted parameters, on a real cluster": ["test_argo.py::the_pipeline"],
}
PROVEN = {
    "check: its pods are as the training's, and a fit one becomes a node; else pods are created": (
        f"{CHECK}test_check_machines.py", "tests/platform/test_held_pods.py", "tests/diagnosis/test_pod_node.py",
    ),
    "check: zones, switches and machines order the verdict, and the ranks": (
        f"{CHECK}test_check_machines.py::orders_the_machines", "tests/job/test_topology.py",
        "tests/job/test_membership.py::adjacent_ranks", "tests/job/test_membership.py::named_the_machines",
    ),
    "check: train's own is on by default for pods, with --exclude-straggler and --switchbox-check": (
        "tests/train/test_train_nodes.py::check_each_other", "tests/train/test_train_config.py::checked_by_default",
    ),
    "check: on all cores that a machine may use": ("tests/diagnosis/test_pod_node.py::all_cores",),
    "Argo 4.1: every recorded answer agrees in every node, or is listed": ("tests/workflow/test_golden.py",),
    "Argo's UI: what was set comes first, empty parameters are left out": (
        f"{FACE}test_pipeline.py::were_set_come_first", f"{SUBMISSION}test_routes.py::empty_parameters",
    ),
    "Argo's UI: the run's name in its list; securityContext, ttlStrategy and podGC": (
        f"{SUBMISSION}test_routes.py::the_title", f"{SUBMISSION}test_routes.py::is_not_root",
        f"{SUBMISSION}test_routes.py::kept_for_a_while",
    ),
    "metrics of the train step: loss, restarts, goodput, tokens a second": (
        f"{FACE}test_templates_command.py::gauges", f"{REPORT}test_report_step.py::gauge_of_goodput",
    ),
    "report: a cluster's steps by their edges; after a stop its words are true": (
        f"{REPORT}test_page.py::by_their_edges", f"{REPORT}test_page.py::stopped_run",
        f"{REPORT}test_report_step.py::follows_which",
    ),
    "live view: without Argo's own lines, one word about TLS": (
        f"{SUBMISSION}test_following.py", f"{SUBMISSION}test_routes.py::not_checked_is_told_once",
    ),
}  # fmt: skip


def recorded_answers() -> Iterator[Line]:
    """How many of the answers that Argo 4.1 brought are given otherwise."""
    newest = [case for case in CASES if case.partition("/")[0].endswith("41")]
    listed = [case for case in newest if case in DIFFERENT]
    measured_text = f"{len(newest) - len(listed)} of {len(newest)}, {len(listed)} listed"
    yield Line("Argo 4.1: recorded answers that agree", "all, or listed with the reason", measured_text, True)


def unproven() -> Iterator[Line]:
    """What does not hold, and why."""
    why = "two: Argo makes a Retry node for every step that could be tried again"
    yield Line("Argo's UI: one node a step where there was no retry", "one", why, False)


def check_costs() -> Iterator[Line]:
    """What the train step's own check adds to the shortest training, on this one machine, which all nodes share."""
    with tempfile.TemporaryDirectory(prefix="everstep-check-") as folder:
        dataset = write_dataset(Path(folder) / "dataset")
        for nodes in (2, 4):
            with_check, without = [], []
            for number in range(PAIRS):
                for choice, seconds in (("True", with_check), ("False", without)):
                    seconds.append(_train(Path(folder), dataset, nodes, choice, number))
            cost = statistics.median(with_check) - statistics.median(without)
            what = f"check: cost of train's own, {nodes} nodes on one machine"
            summary_text = (
                f"{cost:.1f} s ({statistics.median(with_check):.1f} with, {statistics.median(without):.1f} without)"
            )
            yield Line(what, f"<= {CHECK_BUDGET_S:g} s", summary_text, cost <= CHECK_BUDGET_S)


def check_costs_of_pods(cases: Cases) -> Iterator[Line]:
    """The same on a cluster, from the submission to the first iteration: tests/cluster/test_check_cost.py."""
    seconds: dict[str, list[float]] = {"True": [], "False": []}
    for case in cases.values():
        properties = {element.get("name"): element.get("value", "") for element in case.iter("property")}
        if "check" in properties and has_passed(case):
            seconds[properties["check"]].append(float(properties["seconds"]))
    promise, wanted = "check: cost of train's own, two pods on two machines", f"<= {CHECK_BUDGET_S:g} s"
    if not all(seconds.values()):
        yield Line(promise, wanted, "not measured", False)
        return
    with_check, without = (statistics.median(seconds[choice]) for choice in ("True", "False"))
    summary_text = f"{with_check - without:.1f} s ({with_check:.1f} with, {without:.1f} without)"
    yield Line(promise, wanted, summary_text, with_check - without <= CHECK_BUDGET_S)


def _train(folder: Path, dataset: str, nodes: int, choice: str, number: int) -> float:
    """Seconds of a training of two iterations."""
    run = f"{nodes}-{choice}-{number}".lower()
    flags = [f"--nodes={nodes}", "--iterations=2", "--sequence-length=16", f"--network-check={choice}", f"--run={run}"]
    place = [f"--store={folder}/store", f"--outputs={folder}/{run}", f"--dataset={dataset}"]
    began = time.monotonic()
    command = [sys.executable, "-m", "everstep.steps.train", *flags, *place]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return time.monotonic() - began
