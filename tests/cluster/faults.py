"""What can happen to a training on a cluster, done for real, and what it cost.

Each fault does its harm and returns when it did (Unix time); what has to be mended from outside (a machine switched on
again) it mends itself once the training has shown what it can do without.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from runtime.job.records import Reason
from tests.cluster import images, lifecycle, node, processes
from tests.cluster.layout import NODES, node_name
from tests.cluster.trainings import PATIENCE_S, Training
from tests.harness import kill, wait_until

MASTERS_HOST = node_name(1)
"""Where the step's own pod runs: no fault of another node ends it."""
FURTHER = 20
"""Iterations by which a training shows that it goes on."""
MEMORY_MIB = 1000
"""Of a node that is to run out of it: more than it needs, and less than its /dev/shm may grow to."""
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Fault:
    """One line of the table."""

    harm: Callable[[Training], float]
    fired: Callable[[Records], object]
    """What the journal has of it since."""
    alone: bool = False
    """It happens to a machine with a node of the training and without its master: there must be one."""


@dataclass(frozen=True)
class Cost:
    """Of one fault."""

    seconds: float
    """Until the first iteration that was later than any before had been finished."""
    lost: int
    """Iterations that had to be done again."""


def cost(training: Training, moment: float) -> Cost:
    """What it cost, as the workers' reports tell."""
    lines = training.reports()
    before = max((line["iteration"] for line in lines if line["time"] <= moment), default=0)
    later = [line for line in lines if line["time"] > moment]
    after = next(line for line in later if line["iteration"] > before)
    first = min(line["iteration"] for line in later if line["time"] <= after["time"])
    return Cost(after["time"] - moment, max(0, before - first + 1))


def suffer(training: Training, name: str) -> Cost:
    """Let it happen, see that it did and that the training goes on. Raises TimeoutError, AssertionError."""
    wait_until(lambda: steady(training), "a round of both nodes", PATIENCE_S, pause_s=0.5)
    if FAULTS[name].alone:
        spread(training)
    known = len(training.records())
    moment = FAULTS[name].harm(training)
    goes_on(training)
    since = training.records()[known:]
    assert FAULTS[name].fired(since), f"{name}: the journal has nothing of it: {[one['kind'] for one in since]}"
    return cost(training, moment)


def goes_on(training: Training) -> None:
    """Wait until it is well beyond where it is now, which is told some seconds later."""
    now = time.time()

    def further() -> bool:
        lines = training.reports()
        before = max((line["iteration"] for line in lines if line["time"] <= now), default=0)
        after = max((line["iteration"] for line in lines if line["time"] > now), default=0)
        return after >= before + FURTHER or training.over()

    wait_until(further, f"{FURTHER} iterations more", PATIENCE_S, pause_s=0.5)
    assert not training.over(), training.last_words()


def steady(training: Training) -> bool:
    """Whether both nodes are in a round, and none of them is about to go."""
    pods = training.nodes().values()
    return training.world() == len(pods) == 2 and not any("deletionTimestamp" in pod["metadata"] for pod in pods)


def newest(training: Training, host: str = "") -> tuple[str, str]:
    """(node, its pod's name) of the training, on that host if one is named: the last by its name whose pod runs."""
    found = [
        (name, pod["metadata"]["name"])
        for name, pod in training.nodes().items()
        if pod["status"].get("phase") == "Running" and host in ("", pod["spec"].get("nodeName"))
    ]
    assert found, f"no node of the training runs{f' on {host}' if host else ''}"
    return max(found)


def elsewhere(training: Training) -> int:
    """The number of a machine with a running node of the training and without its master; 0: there is none."""
    running = [pod for pod in training.nodes().values() if pod["status"].get("phase") == "Running"]
    hosts = {pod["spec"].get("nodeName") for pod in running} - {MASTERS_HOST}
    return next((number for number in range(1, NODES + 1) if node_name(number) in hosts), 0)


def spread(training: Training) -> None:
    """Have a node of the training elsewhere than its master: where all are together, one has to move."""
    if elsewhere(training):
        return
    training.cluster.kubectl("cordon", MASTERS_HOST)
    try:
        _deleted(training, newest(training)[1])
        wait_until(lambda: elsewhere(training), "a node on another machine", PATIENCE_S, pause_s=0.5)
        wait_until(lambda: steady(training), "a round of both nodes", PATIENCE_S, pause_s=0.5)
    finally:
        training.cluster.kubectl("uncordon", MASTERS_HOST)


def of_node(training: Training, name: str) -> list[psutil.Process]:
    """All processes in that node's pod, as this machine sees them."""
    marks = {f"EVERSTEP_JOB={training.job}".encode(), f"EVERSTEP_NODE={name}".encode()}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if marks <= set(file.read().split(b"\0")):
                found.append(process)
    return found


def worker_of(training: Training, name: str) -> psutil.Process:
    """The training process of that node: the fork server's child, as soon as there is one."""

    def found() -> psutil.Process | None:
        with suppress(psutil.Error):
            there = of_node(training, name)
            servers = {one.pid for one in there if "runtime.agent.forkserver" in one.cmdline()}
            return next((one for one in there if one.ppid() in servers), None)
        return None

    return wait_until(found, f"the worker of {name}", PATIENCE_S, pause_s=0.5)


def process_killed(training: Training) -> float:
    """SIGKILL of a training process."""
    return kill(worker_of(training, newest(training)[0]))


def pod_deleted(training: Training) -> float:
    """`kubectl delete pod`: SIGTERM, and time to hand over."""
    return _deleted(training, newest(training)[1])


def all_pods_deleted(training: Training) -> float:
    """Every pod that trains, at once and by force."""
    pods = [pod["metadata"]["name"] for pod in training.nodes().values()]
    return _deleted(training, *pods, flags=("--grace-period=0", "--force"))


def _deleted(training: Training, *pods: str, flags: tuple[str, ...] = ()) -> float:
    moment = time.time()
    training.cluster.kubectl("delete", "pod", "--wait=false", "--ignore-not-found", *flags, *pods)
    return moment


def evicted(training: Training) -> float:
    """By the API's eviction, as `kubectl drain`, an autoscaler or a preempting scheduler asks for it."""
    _, pod = newest(training)
    moment = time.time()
    wish = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    training.cluster.kubectl.ask(f"pods/{pod}/eviction", wish)
    return moment


def drained(training: Training) -> float:
    """`kubectl drain` of the machine of a node: no pod may go there until it is uncordoned."""
    host = node_name(elsewhere(training))
    moment = time.time()
    training.cluster.kubectl("cordon", host)
    try:
        pods = [pod for pod in training.nodes().values() if pod["spec"].get("nodeName") == host]
        _deleted(training, *(pod["metadata"]["name"] for pod in pods))
        goes_on(training)
    finally:
        training.cluster.kubectl("uncordon", host)
    return moment


def out_of_memory(training: Training) -> float:
    """A node's shared memory is filled until the kernel kills for want of memory."""
    _, pod = newest(training)
    moment = time.time()
    with suppress(processes.ClusterError):  # It ends with what it fills.
        training.cluster.kubectl("exec", pod, "--", "dd", "if=/dev/zero", "of=/dev/shm/filled", "bs=1M", "count=1024")
    return moment


def node_lost(training: Training) -> float:
    """Power cut of the machine of a node; it comes back when the training has gone on without."""
    number = elsewhere(training)
    moment = time.time()
    node.lost(number)
    try:
        goes_on(training)
    finally:
        lifecycle.up()
    return moment


def master_deleted(training: Training) -> float:
    """The step's own pod is deleted, and tried again."""
    moment = time.time()
    training.cluster.kubectl("delete", "pod", training.pod)
    training.start(MASTERS_HOST)
    return moment


def image_missing(training: Training) -> float:
    """A machine has lost its image, no registry answers, and the next pod is put there: it cannot start until then."""
    number = elsewhere(training)
    moment = time.time()
    training.cluster.kubectl("cordon", MASTERS_HOST)
    node.forgotten(number, images.HOST)
    try:
        _deleted(training, newest(training, node_name(number))[1])
        wait_until(lambda: "its container cannot start" in training.words(), "the reason in the step's log", PATIENCE_S,
                   pause_s=0.5)  # fmt: skip
        goes_on(training)
    finally:
        node.imported(number, images.of_the_cluster())
        training.cluster.kubectl("uncordon", MASTERS_HOST)
    return moment


def judged(*reasons: Reason) -> Callable[[Records], object]:
    """A fault of one of these reasons was judged."""
    return lambda records: [one for one in records if one["kind"] == "FaultJudged" and one["reason"] in reasons]


def lost(records: Records) -> object:
    """A node was lost, or announced that it has to go."""
    return [one for one in records if one["kind"] in ("NodeLost", "NodeLeaving")]


def taken_over(records: Records) -> object:
    """Another master has the job, and none of its nodes ended for it."""
    kinds = [one["kind"] for one in records]
    return "MasterClaimed" in kinds and "NodeRequested" not in kinds


FAULTS = {
    "a training process is killed": Fault(process_killed, judged(Reason.KILLED)),
    "a pod is deleted": Fault(pod_deleted, lost),
    "a pod is evicted": Fault(evicted, lost),
    "all pods that train are deleted by force": Fault(all_pods_deleted, lost),
    "a container runs out of memory": Fault(out_of_memory, judged(Reason.OOM)),
    "the step's own pod is deleted": Fault(master_deleted, taken_over),
    "a machine is drained": Fault(drained, lost, alone=True),
    "a machine has no image for the next pod": Fault(image_missing, lost, alone=True),
    "a machine loses its power": Fault(node_lost, lost, alone=True),
}
"""By what happens."""


def spec() -> str:
    """The job that suffers: two nodes, one is enough."""
    worker = {"replicas": 2, "minReplicas": 1, "resources": {"memory": f"{MEMORY_MIB}Mi"}}
    patience = {"maxRelaunches": 100, "coolDown": 1}
    return json.dumps({"replicaSpecs": {"worker": worker}, "patience": patience})
