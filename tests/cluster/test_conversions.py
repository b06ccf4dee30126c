"""Each kind of job of other systems, converted to a pipeline, runs in pods, with stand-ins in its image."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import argo, images, node
from tests.cluster.commands import everstep, run_python
from tests.cluster.layout import NAMESPACE, NODES
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.convert.stand_ins import RANKS, SCRIPT, SCRIPTS, SMALL, ranks_in, smaller

IMAGE = "docker.io/everstep-tests/jobs:1"
ON_THE_CLUSTER: Mapping[str, Mapping[str, str]] = {
    "ai_training_job": {"imagePullPolicy: Always": "imagePullPolicy: IfNotPresent"},
    "pytorch_job": {"imagePullPolicy: Always": "imagePullPolicy: IfNotPresent"},
}
"""What of each its nodes do not have."""

pytestmark = pytest.mark.usefixtures("controller")


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every node has it: the scripts of all jobs, and what they are started by."""
    folder = tmp_path_factory.mktemp("image")
    (host,) = (image for image in images.of_the_cluster() if image.name == images.HOST)
    programs = dict.fromkeys(SCRIPTS, SCRIPT) | {"programs/horovodrun": "#!/bin/sh\nexec python /bench.py\n"}
    files = {}
    for name, text in programs.items():
        files[name] = folder / Path(name).name
        files[name].write_text(text)
    variables = {**host.environment, "PATH": f"/programs:{host.environment['PATH']}"}
    for number in range(1, NODES + 1):
        node.import_images(number, [replace(host, name=IMAGE, files=files, environment=variables)])
    return IMAGE


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
    logs = everstep(cluster, "workflow", "logs", run, "--namespace", NAMESPACE).stdout
    assert ranks_in(logs) == RANKS.get(name, 2), logs[-5000:]
