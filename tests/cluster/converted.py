"""A job of another system, converted and submitted as one train step, in pods of the machines' programs."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.convert import convert
from everstep.runtime.net.token import TOKEN_KEY, token_secret
from everstep.runtime.platform.kubernetes.pods import NODE
from tests.cluster import averaging, images
from tests.cluster.layout import NODES
from tests.cluster.lifecycle import Cluster
from tests.cluster.processes import ClusterError
from tests.cluster.room import SLOT, room
from tests.cluster.trainings import PATIENCE_S, Training
from tests.convert.stand_ins import JOBS
from tests.harness import wait_until

USER = "somebody:x:1000:1000::/tmp:/bin/sh\n"
"""The pods' user in /etc/passwd, as sshd wants one: with a name and a shell."""
FURTHER = 10
"""Iterations that show that a program goes on."""
Pod = dict[str, Any]


def job_text(name: str, changes: Mapping[str, str]) -> str:
    """That documented job's YAML with these changes."""
    text = (JOBS / f"{name}.yaml").read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def give_programs(pod: Pod, folder: Path, environments: Sequence[Path], slots: int = 0) -> None:
    """Let the pod have what its image would: these environments' programs, the user's name, and the test's folder,
    which it may write to, as the same path; `slots`: of its machine's room."""
    (folder / "passwd").write_text(USER)
    folder.chmod(0o777)
    places = {f"place-{number}": path for number, path in enumerate((folder, *environments))}
    mounts = [{"name": name, "mountPath": str(path), "readOnly": path != folder} for name, path in places.items()]
    mounts.append({"name": "place-0", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True})
    (host,) = (image for image in images.of_the_cluster() if image.name == images.HOST)
    search = ":".join([host.environment["PATH"], *(str(path / "bin") for path in environments)])
    (container,) = pod["containers"]
    pod |= {"volumes": [{"name": name, "hostPath": {"path": str(path)}} for name, path in places.items()]}
    container |= {"image": images.HOST, "imagePullPolicy": "IfNotPresent", "workingDir": str(folder)}
    container |= {"env": [*container.get("env", ()), {"name": "PATH", "value": search}], "volumeMounts": mounts}
    container["resources"] = {"limits": {"memory": "1Gi", **({SLOT: str(slots)} if slots else {})}}


@contextmanager
def submitted(cluster: Cluster, text: str, slots: int = 1) -> Iterator[Training]:
    """The job of this YAML, on machines with so many slots each; whatever is left of it is deleted."""
    for node in range(1, NODES + 1):
        room(cluster, node, slots)
    job = Training(cluster, "")
    arguments = convert(text, "job.yaml", images.HOST).arguments
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in arguments.items()}
    try:
        job.submit(nodes="2", min_nodes="1", **texts)
        yield job
    finally:
        job.delete()
        for node in range(1, NODES + 1):
            room(cluster, node, 0)


def said(job: Training, node: str = "") -> str:
    """What the pods of the nodes whose names begin so have written, as far as they are there."""
    texts = []
    for pod in job.cluster.kubectl.list("pods", job.selector):
        if pod["metadata"]["labels"][NODE].startswith(node):
            with suppress(ClusterError):  # It has not begun.
                texts.append(job.cluster.kubectl("logs", pod["metadata"]["name"]))
    return "\n".join(texts)


def goes_on(job: Training, folder: Path, nodes: int, lost: str = "") -> None:
    """Wait until so many nodes are in a round without the lost one, and `averaging` has done more in it."""

    def in_round() -> bool:
        return job.world() == nodes and lost not in members(job)

    wait_until(lambda: in_round() or job.over(), f"a round without {lost or 'faults'}", PATIENCE_S, pause_s=0.5)
    before = len(averaging.lines(folder))

    def further() -> bool:
        return len(averaging.lines(folder)) >= before + FURTHER

    wait_until(lambda: further() or job.over(), f"{FURTHER} iterations more", PATIENCE_S, pause_s=0.5)
    assert not job.over(), job.last_words()


def members(job: Training) -> dict[str, dict[str, Any]]:
    """Of the newest round, by the node's name."""
    newest = [record["round"] for record in job.records() if record["kind"] == "RoundFormed"][-1:]
    return {member["node"]: member for formed in newest for role in formed["members"].values() for member in role}


def ends_well(job: Training, folder: Path) -> list[averaging.Line]:
    """Let `averaging` end; the lines of all that it did, each iteration once and with the right sums."""
    (folder / "end").touch()
    assert job.finish() == "Succeeded", job.last_words()
    done = averaging.lines(folder)
    assert [line.iteration for line in done] == list(range(1, len(done) + 1))
    assert [line.weight for line in done] == pytest.approx(averaging.expected_weights(done))
    return done


def token_of(job: Training) -> str:
    """What its nodes have in common."""
    secret = job.cluster.kubectl.get("secret", token_secret(job.job))
    assert secret
    return base64.b64decode(secret["data"][TOKEN_KEY]).decode()


def keys_are_kept(job: Training, hosts: list[str]) -> None:
    """Somebody has logged in to these nodes, and no log tells how to."""
    for host in hosts:
        assert "Accepted publickey for somebody" in said(job, host)
    assert token_of(job) not in said(job)
    assert "PRIVATE KEY" not in said(job)
