"""`make accept-cluster`: every promise on a real Kubernetes: wanted, measured, holds or not. As root.

The faults' costs are told by the test that does them, in one training; nothing else should run on the machine.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.acceptance import Line, asked, chosen, judge, proven
from tests.cluster.faults import FAULTS
from tests.harness import ROOT

UP_S = 15
"""From nothing until both machines, the control plane and the store are ready."""
CLUSTER = {
    "cluster: up is idempotent, down leaves nothing behind": ["test_lifecycle.py"],
    "platform: pods owned by the Workflow, made once, adopted, deleted by UID": ["test_pods.py"],
    "train step: pods on two machines to the last iteration, loss falls": ["test_training.py"],
    "every fault: the last iteration, each sample applied once, no pod left": ["test_faults.py"],
    "rights: what the account must do, verb by verb, and nothing else": ["test_rights.py"],
    "templates/ is taken by a real API server": ["test_templates.py"],
    "Spark executors as pods tokenize to the same bytes": ["test_spark.py"],
}
"""Promises, and words in the names of their tests below tests/cluster."""

UNSEEN = (
    "faults: API server stopped for 60 s, store stopped for 30 s, a machine cut off the network",
    "of 4 asked 3 run, the 4th is Pending, and joins when there is room",
    "extras give way to a newly pending job, the minimum does not",
    "3 -> 4 -> 3 by editing the ConfigMap on the cluster, sample order checked",
    "Argo's own controller: the pipeline; steps by templateRef; stop, terminate, deletion within 30 s",
)
"""What no test on a cluster shows yet."""


def started() -> Iterator[Line]:
    """Up from nothing, again, down."""
    _cluster("build")
    _cluster("down")
    seconds = [_cluster("up"), _cluster("up")]
    yield Line("cluster: up, from nothing", f"< {UP_S} s", f"{seconds[0]:.1f} s", seconds[0] < UP_S)
    yield Line("cluster: up, when it is", f"< {UP_S} s", f"{seconds[1]:.1f} s", seconds[1] < UP_S)
    _cluster("down")


def _cluster(verb: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "tests.cluster", verb], cwd=ROOT, check=True, capture_output=True)
    return time.monotonic() - began


def ran(path: str) -> dict[str, ElementTree.Element]:
    """The tests below the path, one after the other; by `path::name` what pytest tells of each."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as folder:
        told = Path(folder, "tests.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path, f"--junit-xml={told}"]
        subprocess.run([*command, "-o", "junit_family=xunit1"], cwd=ROOT, capture_output=True, check=False)
        cases = list(ElementTree.parse(told).iter("testcase")) if told.exists() else []
    return {f"{case.get('file')}::{case.get('name')}": case for case in cases}


def judged(cases: Mapping[str, ElementTree.Element]) -> Iterator[Line]:
    """Each promise by the tests whose `path::name` has one of its words; one that is skipped proves nothing."""
    for promise, words in CLUSTER.items():
        mine = [{one.tag for one in case} for name, case in cases.items() if any(word in name for word in words)]
        wrong = sum(bool({"failure", "error", "skipped"} & tags) for tags in mine)
        measured = f"{len(mine) - wrong} of {len(mine)} pass" if mine else "no test ran"
        yield Line(promise, "tests pass", measured, bool(mine) and not wrong)


def faults(cases: dict[str, ElementTree.Element]) -> Iterator[Line]:
    """What each costs."""
    for fault in FAULTS:
        found = next((case for name, case in cases.items() if name.endswith(f"[{fault}]")), None)
        told = {} if found is None else {one.get("name"): one.get("value") for one in found.iter("property")}
        well = found is not None and not {"failure", "error", "skipped"} & {one.tag for one in found}
        cost = f"{told['seconds']} s, {told['lost']} iterations again" if told else "not measured"
        yield Line(f"fault: {fault}", "goes on; its cost is told", cost, well)


PLATFORM, SUBMISSION = "tests/platform/", "tests/submission/"
PROVEN = {
    "platform: watch, 410, back-off on 429/5xx, lost machines, refusals in one line": (
        f"{PLATFORM}test_kubernetes_platform.py", f"{PLATFORM}test_pods_of_a_job.py",
    ),
    "pods: resources, /dev/shm by the checkpoints' arithmetic, affinity, priority, gangs' schemas": (
        f"{PLATFORM}test_pods.py", "tests/train/test_staged.py",
    ),
    "PodGroup before the pods, gone after; topology; deadlines; stop, terminate, deletion": (
        "tests/train/test_train_nodes.py",
    ),
    "both routes to Argo: names, namespaces, 401/403/404/409/422, lost answers, gone servers": (
        f"{SUBMISSION}test_routes.py",
    ),
    "watch, logs, --detach, Ctrl-C, the tree at every width": (
        f"{SUBMISSION}test_following.py", f"{SUBMISSION}test_tree.py",
    ),
    "templates: the chart is what `everstep templates` prints": ("tests/face/test_templates_command.py",),
}  # fmt: skip
"""What needs no cluster to be seen: promise -> the tests that prove it, in the words of `acceptance.proven`."""


def unseen() -> Iterator[Line]:
    """What nothing shows."""
    for promise in UNSEEN:
        yield Line(promise, "tests pass", "no test yet", False)
    yield Line("gang: with the schedulers of Volcano, Koordinator, scheduler-plugins themselves", "tests pass",
               "never run: their documents' schemas only", False)  # fmt: skip
    yield Line("Containerfile proven on a Debian root file system", "each stage's steps run", "never run", False)


ON_A_CLUSTER = "cluster: all that only a real one shows"


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """Those that are asked for."""
    if asked(ON_A_CLUSTER, options.words):
        yield from started()
        cases = ran("tests/cluster")
        yield from judged(cases)
        yield from faults(cases)
    yield from proven(PROVEN, options)
    if not options.words:
        yield from unseen()


def main() -> None:
    """Measure and print."""
    judge(lines(chosen(argparse.ArgumentParser(description=__doc__), [ON_A_CLUSTER, *PROVEN])))


if __name__ == "__main__":
    main()
