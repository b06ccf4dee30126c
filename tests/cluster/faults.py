"""What can happen to a training on a cluster, done for real, and what it cost.

Each fault does its harm and returns when it did (Unix time); what has to be mended from outside (a node switched on
again, an API server started) it mends itself once the training has shown what it can do without.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from everstep.runtime.job.reasons import Reason
from everstep.runtime.platform import POD_VARIABLE
from tests import minio
from tests.cluster import images, lifecycle, network, node, plane, processes
from tests.cluster.costs import Cost, cost
from tests.cluster.journal import Records, both_lost, has_fault, has_new_master, lost_nodes, taken_over, untouched_nodes
from tests.cluster.layout import NAMESPACE, NODES, node_name
from tests.cluster.trainings import PATIENCE_S, Training
from tests.harness import ROUNDS, kill, wait_until

MASTERS_HOST = node_name(1)
"""Where the step's own pod runs: no fault of another node ends it."""
FURTHER = 20
"""Iterations by which a training shows that it goes on."""
MEMORY_MIB = 1000
"""Of a node that is to run out of it: more than it needs, and less than its /dev/shm may grow to."""
API_AWAY_S, STORE_AWAY_S = 60.0, 30.0
"""How long each is stopped, at least."""


@dataclass(frozen=True)
class Fault:
    """One line of the table."""

    harm: Callable[[Training], float]
    fired: Callable[[Records], object]
    """What the journal has of it since."""
    apart: bool = False
    """It happens to one machine of two with a node of the training on each."""


def suffer(training: Training, name: str) -> Cost:
    """Let it happen, see that it did and that the training goes on. Raises TimeoutError, AssertionError."""
    _wait_until_settled(training)
    if FAULTS[name].apart:
        spread(training)
    count_before, fired = len(training.records()), FAULTS[name].fired
    moment = FAULTS[name].harm(training)
    wait_until(
        lambda: fired(training.records()[count_before:]), f"{name}: the journal's word of it", PATIENCE_S, pause_s=0.5
    )
    _wait_until_settled(training)
    goes_on(training)
    since = training.records()[count_before:]
    assert fired(since), f"{name}: then it went another way: {[record['kind'] for record in since]}"
    return cost(training.reports(), moment)


def _wait_until_settled(training: Training) -> None:
    """Wait until both nodes are in a round, and nothing that happened before has still to take effect."""
    wait_until(lambda: steady(training) or training.over(), "a round of both nodes", PATIENCE_S, pause_s=0.5)
    assert not training.over(), training.last_words()


def goes_on(training: Training, watched: bool = True) -> None:
    """Wait until it is well beyond where it is now, which is told some seconds later."""
    now = time.time()

    def further() -> bool:
        lines = training.reports()
        before = max((line["iteration"] for line in lines if line["time"] <= now), default=0)
        after = max((line["iteration"] for line in lines if line["time"] > now), default=0)
        return after >= before + FURTHER or (watched and training.over())

    wait_until(further, f"{FURTHER} iterations more", PATIENCE_S, pause_s=0.5)
    assert not watched or not training.over(), training.last_words()


def steady(training: Training) -> bool:
    """Whether both nodes are in a round, and none of them is about to go."""
    pods = training.nodes().values()
    return training.world() == len(pods) == 2 and not any("deletionTimestamp" in pod["metadata"] for pod in pods)


def newest(training: Training, host: str = "") -> tuple[str, str]:
    """(node, its pod's name) of the training, on that host if one is named: the last by its name whose pod runs."""
    iterations = [
        (name, pod["metadata"]["name"])
        for name, pod in training.nodes().items()
        if pod["status"].get("phase") == "Running" and host in ("", pod["spec"].get("nodeName"))
    ]
    assert iterations, f"no node of the training runs{f' on {host}' if host else ''}"
    return max(iterations)


def hosts(training: Training) -> set[str]:
    """The machines that have a running node of the training."""
    running = [pod for pod in training.nodes().values() if pod["status"].get("phase") == "Running"]
    return {pod["spec"]["nodeName"] for pod in running}


def elsewhere(training: Training) -> int:
    """The number of a machine with a running node of the training and without its master."""
    return next(number for number in range(1, NODES + 1) if node_name(number) in hosts(training) - {MASTERS_HOST})


def spread(training: Training) -> None:
    """Have a node of the training on each machine: where both are on one, the newest has to move."""
    if len(where := hosts(training)) == NODES:
        return
    training.cluster.kubectl("cordon", *where)
    try:
        _delete_pods(training, newest(training)[1])
        wait_until(lambda: len(hosts(training)) == NODES, "a node on another machine", PATIENCE_S, pause_s=0.5)
        _wait_until_settled(training)
    finally:
        training.cluster.kubectl("uncordon", *where)


def marked_processes(*mark_texts: str) -> list[psutil.Process]:
    """All processes with these variables (NAME=value), as this machine sees them."""
    marks = {mark.encode() for mark in mark_texts}
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if marks <= set(file.read().split(b"\0")):
                processes.append(process)
    return processes


def step_of(training: Training) -> psutil.Process:
    """The step's own process."""
    (process,) = (
        process
        for process in marked_processes(f"{POD_VARIABLE}={training.pod}")
        if "everstep.steps.train" in process.cmdline()
    )
    return process


def worker_of(training: Training, name: str) -> psutil.Process:
    """The training process of that node: the fork server's child, as soon as there is one."""

    def find_process() -> psutil.Process | None:
        with suppress(psutil.Error):
            there = marked_processes(f"EVERSTEP_JOB={training.job}", f"EVERSTEP_NODE={name}")
            servers = {process.pid for process in there if "everstep.runtime.agent.forkserver" in process.cmdline()}
            return next((process for process in there if process.ppid() in servers), None)
        return None

    return wait_until(find_process, f"the worker of {name}", PATIENCE_S, pause_s=0.5)


def process_killed(training: Training) -> float:
    """SIGKILL of a training process."""
    return kill(worker_of(training, newest(training)[0]))


def pod_deleted(training: Training) -> float:
    """`kubectl delete pod`: SIGTERM, and time to hand over."""
    return _delete_pods(training, newest(training)[1])


def all_pods_deleted(training: Training) -> float:
    """Every pod that trains, at once and by force."""
    pods = [pod["metadata"]["name"] for pod in training.nodes().values()]
    return _delete_pods(training, *pods, flags=("--grace-period=0", "--force"))


def _delete_pods(training: Training, *pods: str, flags: tuple[str, ...] = ()) -> float:
    moment = time.time()
    training.cluster.kubectl("delete", "pod", "--wait=false", "--ignore-not-found", *flags, *pods)
    return moment


def evicted(training: Training) -> float:
    """By the API's eviction, as `kubectl drain`, an autoscaler or a preempting scheduler asks for it."""
    return evict(training, newest(training)[1])


def evict(training: Training, pod: str) -> float:
    """Evict that pod. Returns the Unix time."""
    moment = time.time()
    wish = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    training.cluster.kubectl.ask(f"pods/{pod}/eviction", wish)
    return moment


def is_missed_by(training: Training, host: str) -> Callable[[], bool]:
    """Tells whether every node that is there now was lost since, as far as the journal knows."""
    count_before = len(training.records())
    there = {name for name, pod in training.nodes().items() if pod["spec"].get("nodeName") == host}
    return lambda: there <= lost_nodes(training.records()[count_before:])


def drained(training: Training) -> float:
    """`kubectl drain` of the machine of a node: no pod may go there until it is uncordoned."""
    host = node_name(elsewhere(training))
    is_missed, moment = is_missed_by(training, host), time.time()
    training.cluster.kubectl("cordon", host)
    try:
        pods = [pod for pod in training.nodes().values() if pod["spec"].get("nodeName") == host]
        _delete_pods(training, *(pod["metadata"]["name"] for pod in pods))
        wait_until(is_missed, "that its node is missed", PATIENCE_S, pause_s=0.5)
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
    is_missed, moment = is_missed_by(training, node_name(number)), time.time()
    with powerless(number):
        wait_until(is_missed, "that its node is missed", PATIENCE_S, pause_s=0.5)
        goes_on(training)
    return moment


@contextmanager
def powerless(number: int) -> Iterator[None]:
    """A machine without power, in which all is killed, and switched on again.

    First its cable is pulled: else its kernel, which is also that of the others, would tell them of closed connections.
    """
    network.cut(number, off=True)
    node.lose_node(number)
    try:
        yield
    finally:
        network.cut(number, off=False)
        lifecycle.up()


def node_cut_off(training: Training) -> float:
    """A machine leaves the network, its pods running on unseen; it returns when the training has gone on without."""
    number = elsewhere(training)
    is_missed, moment = is_missed_by(training, node_name(number)), time.time()
    network.cut(number, off=True)
    try:
        wait_until(is_missed, "that its node is missed", PATIENCE_S, pause_s=0.5)
        goes_on(training)
    finally:
        network.cut(number, off=False)
        lifecycle.up()
    return moment


def master_deleted(training: Training) -> float:
    """The step's own pod is deleted, and tried again."""
    moment = _delete_pods(training, training.pod)
    _tried_again(training, MASTERS_HOST)
    return moment


def master_evicted(training: Training) -> float:
    """The step's own pod is evicted, and tried again."""
    moment = evict(training, training.pod)
    _tried_again(training, MASTERS_HOST)
    return moment


def master_killed(training: Training) -> float:
    """SIGKILL of the step's own process, as when its container runs out of memory; it is tried again."""
    moment = kill(step_of(training))
    _tried_again(training, MASTERS_HOST)
    return moment


def _tried_again(training: Training, host: str) -> None:
    """When the step's pod has ended, it is made again there, as Argo would."""
    wait_until(training.over, f"the end of {training.pod}", PATIENCE_S, pause_s=0.5)
    training.start(host)


def masters_machine_lost(training: Training) -> float:
    """Power cut of the step's own machine: a node stands in for it, while Argo waits for its pod until somebody says
    that the machine is off.

    As soon as Kubernetes takes the machine for silent, `everstep status` names the command, which is given once the
    training goes on; then the step is tried again elsewhere.
    """
    number, pod = elsewhere(training), training.pod
    is_missed, moment = is_missed_by(training, MASTERS_HOST), time.time()
    with powerless(int(MASTERS_HOST.rpartition("-")[2])):
        goes_on(training)
        remove_as_told(training, pod)
        _tried_again(training, node_name(number))
        wait_until(is_missed, "that the nodes there are missed", PATIENCE_S, pause_s=0.5)
        goes_on(training)
    return moment


def remove_as_told(training: Training, pod: str) -> None:
    """Remove the step's pod as soon as `everstep status` says so, in its words."""
    words = ["delete", "pod", pod, "-n", NAMESPACE, "--force", "--grace-period=0"]
    wait_until(lambda: f"kubectl {' '.join(words)}" in training.status(), "the advice", PATIENCE_S, pause_s=1.0)
    training.cluster.kubectl(*words)


def api_server_stopped(training: Training) -> float:
    """Nobody answers at the API's address; the training goes on."""
    moment, kube = time.time(), training.cluster.programs / "kube"
    processes.stop("api-server")
    try:
        goes_on(training, watched=False)
        wait_until(lambda: time.time() > moment + API_AWAY_S, "its time", PATIENCE_S, pause_s=0.5)
        assert not plane.answers(kube)
    finally:
        plane.api_server(kube)
        wait_until(lambda: plane.answers(kube), "the API server", PATIENCE_S, pause_s=0.5)
    return moment


def store_stopped(training: Training) -> float:
    """MinIO is stopped: the step says so, the workers train on, and what they report waits until it is back."""
    word_count, moment = len(training.words()), time.time()
    processes.stop("minio")
    away = time.time()
    try:
        wait_until(
            lambda: "cannot be reached" in training.words()[word_count:], "the step's word of it", PATIENCE_S, 0.5
        )
        wait_until(lambda: time.time() > away + STORE_AWAY_S, "its time", PATIENCE_S, pause_s=0.5)
        assert not plane.store_answers()
        back = time.time()
    finally:
        plane.store_started(minio.binary())
        wait_until(plane.store_answers, "MinIO", PATIENCE_S, pause_s=0.5)
    goes_on(training)
    meanwhile = {line["iteration"] for line in training.reports() if away < line["time"] < back}
    assert len(meanwhile) >= FURTHER, f"only {sorted(meanwhile)} while the store was away"
    return moment


def image_missing(training: Training) -> float:
    """A machine has lost its image, no registry answers, and the next pod is put there: it cannot start until then."""
    number = elsewhere(training)
    moment = time.time()
    training.cluster.kubectl("cordon", MASTERS_HOST)
    node.forget_image(number, images.HOST)
    try:
        _delete_pods(training, newest(training, node_name(number))[1])
        wait_until(lambda: "its container cannot start" in training.words(), "the reason in the step's log", PATIENCE_S,
                   pause_s=0.5)  # fmt: skip
        goes_on(training)
    finally:
        node.import_images(number, images.of_the_cluster())
        training.cluster.kubectl("uncordon", MASTERS_HOST)
    return moment


FAULTS = {
    "a training process is killed": Fault(process_killed, has_fault(Reason.KILLED)),
    "a pod is deleted": Fault(pod_deleted, lost_nodes),
    "a pod is evicted": Fault(evicted, lost_nodes),
    "all pods that train are deleted by force": Fault(all_pods_deleted, both_lost),
    "a container runs out of memory": Fault(out_of_memory, has_fault(Reason.OOM)),
    "the step's own pod is deleted": Fault(master_deleted, taken_over),
    "the step's own pod is evicted": Fault(master_evicted, taken_over),
    "the step's own process is killed": Fault(master_killed, taken_over),
    "the API server stops": Fault(api_server_stopped, untouched_nodes),
    "the store stops": Fault(store_stopped, untouched_nodes),
    "a machine is drained": Fault(drained, lost_nodes, apart=True),
    "a machine has no image for the next pod": Fault(image_missing, lost_nodes, apart=True),
    "a machine leaves the network": Fault(node_cut_off, lost_nodes, apart=True),
    "a machine loses its power": Fault(node_lost, lost_nodes, apart=True),
    "the step's own machine loses its power": Fault(masters_machine_lost, has_new_master, apart=True),
}
"""By what happens; the last one leaves the step's own pod on another machine than `MASTERS_HOST`."""


def spec() -> str:
    """The job that suffers: two nodes, one is enough."""
    worker = {"replicas": 2, "minReplicas": 1, "resources": {"memory": f"{MEMORY_MIB}Mi"}}
    patience = {"maxRelaunches": 100 * ROUNDS, "coolDown": 1}
    return json.dumps({"replicaSpecs": {"worker": worker}, "patience": patience})
