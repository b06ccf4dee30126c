"""Baidu's documented elastic Horovod job, converted, by a real horovodrun that starts its workers in pods by ssh.

Its trainers are on two machines. Like the pods of a pipeline they run without root, as a user with a name and a shell.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.convert import convert
from everstep.runtime.net.token import TOKEN_KEY, token_secret
from everstep.runtime.platform.kubernetes.pods import NODE
from tests.cluster import faults, images
from tests.cluster.journal import lost_nodes
from tests.cluster.layout import NODES
from tests.cluster.lifecycle import Cluster
from tests.cluster.processes import ClusterError
from tests.cluster.room import SLOT, room
from tests.cluster.trainings import PATIENCE_S, Training
from tests.convert.stand_ins import JOBS
from tests.frameworks.horovod_losses import SCRIPT, end_soon, losses_alone, losses_in
from tests.frameworks.test_horovod import python
from tests.harness import wait_until

__all__ = ["python"]

ITERATIONS, SECONDS = 10_000, 1.0
"""More than there will be, and how long each takes until it is said which is the last."""
SIZES = {"replicas: 3": "replicas: 2", "maxReplicas: 5": "maxReplicas: 2", "-np 3": "-np 2", "--max-np=5": "--max-np=2"}
USER = "somebody:x:1000:1000::/tmp:/bin/sh\n"
"""The pods' user in /etc/passwd."""


def job_of(folder: Path, python: Path) -> str:
    """The documented job at the size of this cluster, with what its image would have: Horovod, and the user's name."""
    text = (JOBS / "ai_training_job.yaml").read_text()
    for large, small in SIZES.items():
        assert large in text
        text = text.replace(large, small)
    command = f"{python} -u {SCRIPT} {ITERATIONS} {SECONDS}"
    job: dict[str, Any] = yaml.safe_load(text.replace("python bench.py", command).replace("SECONDS=300", "SECONDS=20"))
    (folder / "passwd").write_text(USER)
    folder.chmod(0o755)
    places = {python.parents[1]: "horovod", python.resolve().parents[1]: "python", folder: "job"}
    mounts = [{"name": name, "mountPath": str(path), "readOnly": True} for path, name in places.items()]
    mounts.append({"name": "job", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True})
    volumes = [{"name": name, "hostPath": {"path": str(path)}} for path, name in places.items()]
    (host,) = (image for image in images.of_the_cluster() if image.name == images.HOST)
    variables = [{"name": "PATH", "value": f"{host.environment['PATH']}:{python.parent}"}]
    for name, role in job["spec"]["replicaSpecs"].items():
        pod = role["template"]["spec"]
        (container,) = pod["containers"]
        pod |= {"volumes": volumes, "schedulerName": "default-scheduler"}
        container |= {"image": images.HOST, "imagePullPolicy": "IfNotPresent", "workingDir": str(folder)}
        container |= {"env": variables, "volumeMounts": mounts}
        container["resources"] = {"limits": {"memory": "1Gi", **({SLOT: "1"} if name == "trainer" else {})}}
    return yaml.safe_dump(job)


@pytest.fixture
def job(cluster: Cluster, python: Path, tmp_path: Path) -> Iterator[Training]:
    """It is submitted; whatever is left of it is deleted."""
    for node in range(1, NODES + 1):
        room(cluster, node, 1)
    new_training = Training(cluster, "")
    arguments = convert(job_of(tmp_path, python), "job.yaml", images.HOST).arguments
    try:
        texts = {
            name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in arguments.items()
        }
        new_training.submit(nodes="2", min_nodes="1", **texts)
        yield new_training
    finally:
        new_training.delete()
        for node in range(1, NODES + 1):
            room(cluster, node, 0)


def said(job: Training, node: str) -> str:
    """What the pods of that node and its replacements have written, as far as they are there."""
    texts = []
    for pod in job.cluster.kubectl.list("pods", job.selector):
        if pod["metadata"]["labels"][NODE].startswith(node):
            with suppress(ClusterError):  # It has not begun.
                texts.append(job.cluster.kubectl("logs", pod["metadata"]["name"]))
    return "\n".join(texts)


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
    secret = job.cluster.kubectl.get("secret", token_secret(job.job))
    assert secret
    token = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
    for node in ("trainer-0-0", "trainer-1-1"):
        assert "Accepted publickey for somebody" in said(job, node)
    assert token not in said(job, "")
    assert "PRIVATE KEY" not in said(job, "")
