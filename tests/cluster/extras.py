"""A job of four nodes of which three are enough, and who is more important than the fourth."""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.cluster import images
from tests.cluster.kubectl import Kubectl
from tests.cluster.room import SLOT
from tests.cluster.trainings import PATIENCE_S, Training
from tests.harness import wait_until

CLASSES = {"min": 1000, "other": 500, "extra": 100}
"""PriorityClasses and their values: another job is more important than our extras, and less than our minimum."""
SPEC = json.dumps({
    "replicaSpecs": {"worker": {"replicas": 4, "minReplicas": 3, "resources": {"memory": "1Gi", SLOT: 1}}},
    "patience": {"coolDown": 1, "joinWindow": 5},
})  # fmt: skip
MINIMUM = ("worker-0-0", "worker-1-0", "worker-2-0")
FURTHER = 10


@contextmanager
def classes(kubectl: Kubectl) -> Iterator[None]:
    """The PriorityClasses are there."""
    for name, value in CLASSES.items():
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        kubectl.apply({**kind, "metadata": {"name": name}, "value": value})
    try:
        yield
    finally:
        kubectl("delete", "priorityclass", *CLASSES)


def goes_on_with(job: Training, nodes: int) -> None:
    """Rounds of so many nodes are formed and train."""
    wait_until(lambda: job.world() == nodes, f"a round of {nodes} nodes", PATIENCE_S, pause_s=0.5)
    job.wait_iteration(job.iteration() + FURTHER)
    assert job.in_order()


def phases(job: Training) -> dict[str, str]:
    """Of the job's pods, by node."""
    return {name: pod["status"].get("phase", "") for name, pod in job.nodes().items()}


@contextmanager
def run_more_important_pod(
    job: Training, scheduler: str = "default-scheduler", labels: Mapping[str, str] = {}
) -> Iterator[None]:
    """A pod of the other job's class runs, in the place of an extra; it goes at the end."""
    name = f"other-{secrets.token_hex(3)}"
    container = {"name": "main", "image": images.PAUSE}
    resources = {"requests": {"cpu": "10m"}, "limits": {SLOT: "1"}}
    spec = {
        "schedulerName": scheduler, "priorityClassName": "other", "terminationGracePeriodSeconds": 0,
        "containers": [{**container, "resources": resources}],
    }  # fmt: skip
    metadata = {"name": name, "labels": dict(labels)}
    job.cluster.kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def runs() -> bool:
        pod = job.cluster.kubectl.get("pod", name)
        return bool(pod and pod["status"].get("phase") == "Running")

    wait_until(runs, f"{name} in the place of an extra", PATIENCE_S, pause_s=0.5)
    yield
    job.cluster.kubectl("delete", "pod", name)
