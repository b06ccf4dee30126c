"""`make accept-cluster`: every promise on a real Kubernetes: wanted, measured, holds or not. As root.

The costs of faults come from the test that causes them, in one training; nothing else should run on the machine.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks import cluster_check_and_ui, lost_machine
from benchmarks.acceptance import (
    Cases,
    Line,
    has_passed,
    is_asked,
    judge,
    line_of,
    parse_options,
    prove,
    read_all,
    run_tests,
)
from benchmarks.lost_machine import BUDGET_S
from tests.cluster.faults import FAULTS
from tests.harness import ROOT

UP_S = 15
"""From nothing until both machines, the control plane and the store are ready."""
GONE_S = 30
"""From the final end of a run until nothing of its nodes is left."""
SILENT = ("a machine leaves the network", "a machine loses its power", "the step's own machine loses its power")
"""Faults of a machine whose neighbours have to find out by themselves."""
CUTS = 10
CLUSTER = {
    "cluster: up is idempotent, down leaves nothing behind": ["test_lifecycle.py"],
    "platform: pods owned by the Workflow, made once, adopted, deleted by UID": ["test_pods.py"],
    "train step: pods on two machines to the last iteration, loss falls": ["test_training.py"],
    "every fault: the last iteration, each sample applied once, no pod left": ["test_faults.py"],
    "API server stopped for 60 s, store stopped for 30 s, a machine cut off the network": [
        "test_faults.py::-the API server stops]",
        "test_faults.py::-the store stops]",
        "test_faults.py::-a machine leaves the network]",
    ],
    "the step's own pod deleted, evicted, killed, on a dead machine (told by `everstep status`): adopted": [
        "test_faults.py::-the step's own pod is deleted]",
        "test_faults.py::-the step's own pod is evicted]",
        "test_faults.py::-the step's own process is killed]",
        "test_faults.py::-the step's own machine loses its power]",
    ],
    "of 4 asked 3 run, the 4th is Pending, and joins when there is room": [
        "test_scaling.py::three_of_four",
        "test_scaling.py::the_fourth_joins",
    ],
    "extras give way to a newly pending job, the minimum does not": ["test_scaling.py::an_extra_gives_way"],
    "4 -> 3 -> 4 by editing the ConfigMap and by `everstep scale`, each sample once": [
        "test_scaling.py::editing",
        "test_scaling.py::ends_well",
    ],
    "the step dies and nobody tries it again: its nodes end by their dead-man timer": [
        "test_stopping.py::no_master_comes_for"
    ],
    "Argo's own controller and executor run the submitted pipeline to its end": ["test_argo.py::the_pipeline"],
    "with Argo: steps called by templateRef from anybody's workflow": ["test_argo.py::template_ref"],
    "with Argo: a step whose pod is lost 5 times is tried again each time": ["test_argo.py::lost_more_often"],
    "stop or terminate, then retry: no iteration is done again": ["test_stopping.py::after_it_was_stopped"],
    "gangs, with Volcano and coscheduling themselves: of 3 none or all, the 4th joins, gives way": ["test_gangs.py"],
    "rights: what the account must do, verb by verb, and nothing else": ["test_rights.py"],
    "templates/ is taken by a real API server": ["test_templates.py"],
    "Spark executors as pods tokenize to the same bytes": ["test_spark.py"],
}
"""Promises, and words in the names of their tests below tests/cluster."""
MACHINES = {
    "an error that its machine repeats moves its pod to the other machine; one that both repeat fails the job": [
        "test_two_machines.py::an_error",
    ],
    "nodes on machines apart; one power cut leaves a copy of each part of a sharded state": [
        "test_two_machines.py::apart",
    ],
    "with Argo: the step's pod deleted or evicted, its nodes taken over": ["test_argo.py::was_lost_is_tried_again"],
    "with Argo: `everstep workflow list|get|logs|stop|retry -n NS`, by kube context and server; 0 iterations again": [
        "test_users.py::is_listed_shown_read",
    ],
    "with Argo: `argo stop`, then `argo retry`: no iteration is done again": ["test_users.py::argos_own_command"],
    "with Argo: every pod evicted at once, and none can start: the newest state is in the store": [
        "test_users.py::evicted_at_once",
    ],
    "with Argo: `everstep scale` beyond the bounds is refused at the prompt": ["test_users.py::beyond_the_bounds"],
    "with Argo: the step's own machine dies; `everstep status` names the command, Argo tries again": [
        "test_users.py::own_machine_dies",
    ],
    "with Argo: `argo submit --from workflowtemplate/...` of single steps": ["test_users.py::submitted_alone"],
    "with Argo: a CronWorkflow around the pipeline": ["test_users.py::cron_workflow"],
    "with Argo: stop, terminate, deletion, deadline: the newest state is in the store before the pods end": [
        "test_argo.py::over_for_good",
    ],
    "with Argo: a job of each kind that `everstep convert` knows, as a pipeline, in pods": ["test_conversions.py"],
    "Kueue itself: quota for two admits none of three, the minimum whole, an extra gives way": ["test_kueue.py"],
    "rights: the train step's account reads no Secret": ["test_rights.py", "test_pods.py::only_the_workflow"],
}
"""The same, of lost machines, their copies, and least rights."""


def cluster_starts() -> Iterator[Line]:
    """Start the cluster from nothing, start it again, take it down."""
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


def faults(cases: Cases) -> Iterator[Line]:
    """The cost of each fault, at its worst."""
    for fault in FAULTS:
        mine = [case for name, case in cases.items() if name.endswith(f"-{fault}]")]
        facts = [{entry.get("name"): entry.get("value", "") for entry in case.iter("property")} for case in mine]
        costs = [(float(of_case["seconds"]), int(of_case["lost"])) for of_case in facts if "seconds" in of_case]
        passed = bool(mine) and all(map(has_passed, mine))
        seconds, lost = (max(figures) for figures in zip(*costs, strict=True)) if costs else (math.inf, 0)
        summary_text = f"{seconds:.1f} s, {lost} iterations again, {len(costs)} times" if costs else "not measured"
        if fault in SILENT:
            yield Line(
                f"fault: {fault}", f"goes on within {BUDGET_S:g} s", summary_text, passed and seconds <= BUDGET_S
            )
        else:
            yield Line(f"fault: {fault}", "goes on; its cost is told", summary_text, passed)


def stopped_runs(cases: Cases) -> Iterator[Line]:
    """The longest time until a run that has ended for good has left nothing of its nodes."""
    counts = [
        float(entry.get("value", "inf"))
        for name, case in cases.items()
        if "takes_its_nodes_along" in name and has_passed(case)
        for entry in case.iter("property")
        if entry.get("name") == "gone"
    ]
    measured_text = f"{max(counts):.1f} s" if counts else "not measured"
    promise = "stop, terminate, deletion of the Workflow: no process and no memory of its nodes is left"
    yield Line(promise, f"<= {GONE_S} s, each", measured_text, len(counts) == 3 and max(counts) <= GONE_S)


PLATFORM, SUBMISSION = "tests/platform/", "tests/submission/"
PROVEN = {
    "a silent node is left out of the next round, comes back, or is lost after the whole silence; votes, refutations": (
        "tests/job/test_suspicion.py",
    ),
    "who stands still asks its neighbours, itself and through others": ("tests/agent/test_neighbours.py",),
    "a step is tried again after each lost machine, after other failures three times": (
        "tests/workflow/test_machines_lost.py",
    ),
    "platform: watch, 410, back-off on 429/5xx, lost machines, refusals in one line": (
        f"{PLATFORM}test_kubernetes_platform.py", f"{PLATFORM}test_pods_of_a_job.py",
    ),
    "pods: resources, /dev/shm by the checkpoints' arithmetic, affinity, priority, gangs' schemas": (
        f"{PLATFORM}test_pods.py", "tests/train/test_shared_memory.py",
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
    "templates: the chart by helm: each value, and what it changes": ("tests/face/test_chart.py",),
    "one Kubernetes client: exec plugins, client certificates, another server name, expired tokens": (
        f"{SUBMISSION}test_kube_config.py",
    ),
    "the user's text, tokenizer, model, script and project come along, once, without what .gitignore names": (
        "tests/face/test_local_files.py",
    ),
    "preflight: each thing that a namespace lacks in one line with its mend; `everstep doctor`": (
        f"{SUBMISSION}test_preflight.py",
    ),
    "the check makes pods as the training's, one a machine, with spare ones; its verdict names machines": (
        "tests/check/test_check_machines.py",
    ),
    "an error that restarts do not mend moves its node to another machine, then fails the job; the script's own "
    "fails at once, in virtual time": ("tests/job/test_escalation.py",),
    "before a restart that hardware may be to blame for, survivors test themselves; not after a kill or a preemption": (
        "tests/job/test_checked_restarts.py", "tests/agent/test_run_beside.py",
        "tests/survival/test_checked_restarts.py",
    ),
    "a job spec's time limit, tolerance of faults, priority, scheduler, role and framework, as AITrainingJob's": (
        "tests/job/test_spec_reader.py", "tests/job/test_limits.py::time_limit", "tests/train/test_train_nodes.py",
    ),
    "nodes prefer machines, then zones, apart; so do the copies of their state": (
        "tests/job/test_peers.py", f"{PLATFORM}test_pods.py",
    ),
    "list, get, logs, stop, terminate, retry of a cluster's runs; scale refused beyond the bounds": (
        f"{SUBMISSION}test_runs_there.py", f"{SUBMISSION}test_scaling_there.py",
    ),
    "WorkflowTemplates can be submitted alone; progress for Argo; names cut as Kubernetes does": (
        "tests/face/test_templates_command.py", "tests/workflow/test_generated_name.py",
        "tests/train/test_train_step.py::progress_is_told",
    ),
    "a step's pod on a dead machine: `everstep status` tells, and says what mends it": (
        f"{SUBMISSION}test_status_there.py",
    ),
}  # fmt: skip
"""Promises that need no cluster -> the tests that prove them, in the words of `acceptance.proven`."""


def unproven() -> Iterator[Line]:
    """What nothing proves."""
    never = "never run"
    yield Line("check: matmul, memory, copies and NCCL on each GPU", "a faulty one is named", f"{never}: no GPU", False)
    yield Line("gang: with the scheduler of Koordinator itself", "tests pass",
               "never run: its documents' schema only", False)  # fmt: skip


ON_A_CLUSTER = "cluster: all that only a real one shows"
LOST = "lost machine: its cable is pulled 10 times; frozen for 10 s; a blip of 3 s (two network namespaces)"
COSTS = "check: cost of train's own"
ANSWERS = "Argo 4.1: recorded answers that agree"
IMAGES = "images: each stage of templates/Containerfile is made on a Debian root file system, and its steps run"


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines."""
    if is_asked(ON_A_CLUSTER, options.words):
        yield from cluster_starts()
        cases = (
            read_all(options.tests) if options.tests else run_tests(["tests/cluster"], 0)
        )  # one after the other, because they measure
        for promise, words in {**CLUSTER, **MACHINES, **cluster_check_and_ui.ON_A_CLUSTER}.items():
            yield line_of(promise, words, cases)
        yield from faults(cases)
        yield from stopped_runs(cases)
        yield from cluster_check_and_ui.check_costs_of_pods(cases)
    if is_asked(LOST, options.words):
        for what, measured_text, budget, holds in lost_machine.faults(CUTS):
            yield Line(f"lost machine: {what}", budget, measured_text, holds)
    if is_asked(IMAGES, options.words):
        yield line_of(IMAGES, ["test_images.py"], run_tests(["tests/images"], 0))
    if is_asked(COSTS, options.words):
        yield from cluster_check_and_ui.check_costs()
    if is_asked(ANSWERS, options.words):
        yield from cluster_check_and_ui.recorded_answers()
    yield from prove({**PROVEN, **cluster_check_and_ui.PROVEN}, options)
    if not options.words:
        yield from unproven()
        yield from cluster_check_and_ui.unproven()


def main() -> None:
    """Measure and print."""
    promise_names = [ON_A_CLUSTER, LOST, COSTS, ANSWERS, IMAGES, *PROVEN, *cluster_check_and_ui.PROVEN]
    judge(lines(parse_options(argparse.ArgumentParser(description=__doc__), promise_names)))


if __name__ == "__main__":
    main()
