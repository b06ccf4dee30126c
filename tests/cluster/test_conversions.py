"""Each kind of job of other systems, converted to a pipeline, runs in pods, with stand-ins in its image."""

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.runtime.platform.kubernetes.pods import NODE
from tests.cluster import argo, images, node, volcano
from tests.cluster.commands import everstep, run_python
from tests.cluster.layout import NAMESPACE, NODES
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.cluster.trainings import PATIENCE_S
from tests.convert.stand_ins import LAUNCHERS, RANKS, SCRIPT, SCRIPTS, SMALL, ranks_in, smaller
from tests.golang import NoGoError
from tests.harness import wait_until

FOLDER = "/jobs"
"""The image's own, in which its containers begin."""
IMAGE = "docker.io/everstep-tests/jobs:1"
IF_NOT_PRESENT = {"imagePullPolicy: Always": "imagePullPolicy: IfNotPresent"}
ON_THE_CLUSTER: Mapping[str, Mapping[str, str]] = {
    "ai_training_job": {
        **IF_NOT_PRESENT, "schedulerName: volcano": "schedulerName: default-scheduler",
        "\"baidu.com/v100_32g_cgpu\": \"1\"": "memory: 1Gi",
    },
    "elastic_job": {
        **IF_NOT_PRESENT, ", metax-tech.com/gpu: 8": "", "schedulerName: koord-scheduler": "",
        "annotations:\n            gang.scheduling.koordinator.sh/name: fine-tuning-gang": "labels: {team: tuning}",
    },
    "mpi_job": {"queue: ml": f"queue: {volcano.QUEUE}"},
    "pytorch_job": {
        **IF_NOT_PRESENT, "{gpu: a100}": "{kubernetes.io/os: linux}",
        "persistentVolumeClaim: {claimName: imagenet}": "emptyDir: {}",
    },
}  # fmt: skip
"""What of each this cluster does not have."""
OF_VOLCANO = ("mpi_job", "volcano_job", "volcano_mpi")
"""Those that its scheduler places."""

pytestmark = pytest.mark.usefixtures("controller")


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every node has it: the scripts of all jobs, and what they are started by."""
    folder = tmp_path_factory.mktemp("image")
    (host,) = (image for image in images.of_the_cluster() if image.name == images.HOST)
    programs = {f"{FOLDER[1:]}/{name}": SCRIPT for name in SCRIPTS}
    programs |= {f"programs/{name}": f"#!/bin/sh\n{line}\n" for name, line in LAUNCHERS.items()}
    files = {}
    for name, text in programs.items():
        files[name] = folder / Path(name).name
        files[name].write_text(text)
    first = {"PATH": "/programs", "PYTHONPATH": FOLDER}
    variables = {**host.environment, **{name: f"{at}:{host.environment[name]}" for name, at in first.items()}}
    own_image = replace(host, name=IMAGE, files=files, environment=variables, working_folder=FOLDER)
    for number in range(1, NODES + 1):
        node.import_images(number, [own_image])
    return IMAGE


@pytest.fixture
def gangs(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[None]:
    """Volcano is there for the jobs that ask for it."""
    if request.node.callspec.params["name"] not in OF_VOLCANO:
        yield
        return
    try:
        volcano.install(cluster.kubectl)
    except NoGoError as why:
        pytest.skip(str(why))
    yield
    volcano.remove()


def logs_of(cluster: Cluster, run: str) -> str:
    """Of the pods that are nodes of the run's training."""
    pods = [pod["metadata"] for pod in cluster.kubectl.list("pods", NODE)]
    names = [pod["name"] for pod in pods if pod["ownerReferences"][0]["name"] == run]
    return "".join(cluster.kubectl("logs", name) for name in names)


@pytest.mark.usefixtures("gangs")
@pytest.mark.parametrize("name", SMALL)
def test_each_kind_runs_in_pods(cluster: Cluster, image: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(smaller(name, ON_THE_CLUSTER.get(name, {})))
    converted = everstep(cluster, "convert", str(tmp_path / "job.yaml"), "--to", "python", "--image", image)
    assert converted.returncode == 0, converted.stderr
    (pipeline := tmp_path / "pipeline.py").write_text(converted.stdout)
    run = f"job-{secrets.token_hex(3)}"
    completed = run_python(
        cluster, str(pipeline), "--target", "argo", "--namespace", NAMESPACE, "--name", run, "--image", image,
        "--service-account", SERVICE_ACCOUNT, "--store-secret", STORE_SECRET, "--store", f"s3://{BUCKET}/{run}",
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert argo.workflow(cluster.kubectl, run)["status"]["phase"] == "Succeeded"
    logs = logs_of(cluster, run)
    assert ranks_in(logs) == RANKS.get(name, 2), logs[-5000:]


def test_the_workflow_that_is_printed_runs_in_pods_as_it_stands(cluster: Cluster, image: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(smaller("elastic_job", ON_THE_CLUSTER["elastic_job"]))
    converted = everstep(
        cluster, "convert", str(tmp_path / "job.yaml"), "--image", image, "--service-account", SERVICE_ACCOUNT,
        "--store-secret", STORE_SECRET, "--store", f"s3://{BUCKET}/printed-{secrets.token_hex(3)}",
    )  # fmt: skip
    assert converted.returncode == 0, converted.stderr
    workflow = yaml.safe_load(converted.stdout)
    run = f"{workflow['metadata'].pop('generateName')}{secrets.token_hex(3)}"
    workflow["metadata"]["name"] = run
    cluster.kubectl.create(workflow)

    def ended_workflow() -> dict[str, Any] | None:
        found = argo.workflow(cluster.kubectl, run)
        return found if found.get("status", {}).get("phase") in argo.ENDED else None

    ended = wait_until(ended_workflow, f"the end of workflow {run}", 2 * PATIENCE_S, pause_s=1)
    assert ended["status"]["phase"] == "Succeeded", json.dumps(ended["status"], indent=1)
    logs = logs_of(cluster, run)
    assert ranks_in(logs) == 2, logs[-5000:]
