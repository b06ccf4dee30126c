"""Baidu's documented elastic Horovod job, converted, by a real horovodrun that starts its workers in pods by ssh.

Its trainers are on two machines. Like the pods of a pipeline they run without root, as a user with a name and a shell.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import faults
from tests.cluster.converted import give_programs, job_text, keys_are_kept, said, submitted
from tests.cluster.journal import lost_nodes
from tests.cluster.layout import NODES
from tests.cluster.lifecycle import Cluster
from tests.cluster.trainings import PATIENCE_S, Training
from tests.frameworks.horovod_losses import SCRIPT, end_soon, losses_alone, losses_in
from tests.frameworks.test_horovod import python
from tests.harness import wait_until

__all__ = ["python"]

ITERATIONS, SECONDS = 10_000, 1.0
"""More than there will be, and how long each takes until it is said which is the last."""
SIZES = {
    "replicas: 3": "replicas: 2", "maxReplicas: 5": "maxReplicas: 2", "-np 3": "-np 2", "--max-np=5": "--max-np=2",
    "SECONDS=300": "SECONDS=20",
}  # fmt: skip


def job_of(folder: Path, python: Path) -> str:
    """The documented job at the size of this cluster, with what its image would have: Horovod, and the user's name."""
    command = f"{python} -u {SCRIPT} {ITERATIONS} {SECONDS}"
    job: dict[str, Any] = yaml.safe_load(job_text("ai_training_job", {**SIZES, "python bench.py": command}))
    for name, role in job["spec"]["replicaSpecs"].items():
        pod = role["template"]["spec"]
        give_programs(pod, folder, [python.parents[1], python.resolve().parents[1]], int(name == "trainer"))
        pod["schedulerName"] = "default-scheduler"
    return yaml.safe_dump(job)


@pytest.fixture
def job(cluster: Cluster, python: Path, tmp_path: Path) -> Iterator[Training]:
    """It is submitted; a trainer finds room on one machine each."""
    with submitted(cluster, job_of(tmp_path, python)) as submitted_job:
        yield submitted_job


def trains(job: Training, ranks: int, beyond: int = 0) -> int:
    """Wait until so many ranks do iterations beyond that one; the newest."""

    def last() -> tuple[int, int]:
        losses = losses_in(said(job, "launcher"))
        return (max(losses), losses[max(losses)][0]) if losses else (0, 0)

    def is_so() -> bool:
        return last()[0] > beyond and last()[1] == ranks

    wait_until(lambda: is_so() or job.over(), f"{ranks} ranks", PATIENCE_S, pause_s=0.5)
    assert not job.over(), job.last_words()
    return last()[0]


def test_a_converted_job_trains_by_ssh_between_pods_and_goes_on_with_the_same_losses_when_one_is_deleted(
    job: Training, python: Path, tmp_path: Path
) -> None:
    done = trains(job, 2)
    machines = {pod["spec"]["nodeName"] for name, pod in job.nodes().items() if name.startswith("trainer")}
    assert len(machines) == NODES
    faults.pod_deleted(job)
    done = trains(job, 1, done)
    done = trains(job, 2, done)
    assert lost_nodes(job.records()) == {"trainer-1-0"}
    last = end_soon(tmp_path, done)
    assert job.finish() == "Succeeded", job.last_words()
    losses = losses_in(said(job, "launcher"))
    assert sorted(losses) == list(range(1, last + 1))
    assert [loss for _, loss in losses.values()] == pytest.approx(losses_alone(python, last), rel=1e-3)
    keys_are_kept(job, ["trainer-0-0", "trainer-1-1"])
