"""Argo's own controller runs what Everstep renders: the submitted pipeline, and steps called by templateRef."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.runtime.store import open_store
from everstep.steps.template import RETRIES
from tests.cluster import argo, faults, images, layout, processes
from tests.cluster.argo import ByArgo
from tests.cluster.costs import cost
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.cluster.trainings import PATIENCE_S
from tests.golang import NoGoError
from tests.harness import ROOT, wait_until

STEPS = {"corpus", "model", "tokenize", "check", "train", "evaluate"}
DEADLINE_S = 150
"""Of a run that has one: time enough to begin to train."""


@pytest.fixture(scope="module", autouse=True)
def controller(cluster: Cluster) -> Iterator[None]:
    """Runs for these tests; others have Workflows that nobody shall act on."""
    try:
        argo.install(cluster.kubectl)
    except NoGoError as why:
        pytest.skip(str(why))
    yield
    processes.stop("argo")


def everstep(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of a user's whose kube context is the cluster."""
    variables = {**os.environ, **cluster.store, "KUBECONFIG": str(layout.ADMIN), "COLUMNS": "120"}
    variables.pop("ARGO_SERVER", None)
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
        timeout=3 * PATIENCE_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lines() -> bytes:
    """A small corpus: a document for each paragraph that Everstep's own documents have."""
    pages = (ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    paragraphs = [paragraph for page in sorted(pages) for paragraph in page.read_text().split("\n\n")]
    return "\n".join(json.dumps({"text": paragraph}) for paragraph in paragraphs).encode()


@pytest.fixture(scope="module")
def text(cluster: Cluster, lines: bytes) -> str:
    """Its URI."""
    folder, name = f"s3://{BUCKET}/text-{secrets.token_hex(3)}", "text.jsonl"
    open_store(folder, environment=cluster.store).put(name, lines)
    return f"{folder}/{name}"


def test_the_pipeline_is_submitted_followed_and_trains_in_pods(cluster: Cluster, lines: bytes, tmp_path: Path) -> None:
    text = tmp_path / "mine.jsonl"
    text.write_bytes(lines)
    name = f"pipeline-{secrets.token_hex(3)}"
    completed = everstep(
        cluster, "pipelines/llama_finetune.py", "--target", "argo", "--namespace", layout.NAMESPACE, "--name", name,
        "--image", images.HOST, "--service-account", SERVICE_ACCOUNT, "--store-secret", STORE_SECRET,
        "--store", f"s3://{BUCKET}/{name}", "--corpus", str(text), "--iterations", "40",
    )  # fmt: skip
    workflow = argo.workflow(cluster.kubectl, name)
    assert completed.returncode == 0, completed.stderr + json.dumps(workflow["status"], indent=1)
    assert workflow["status"]["phase"] == "Succeeded"
    phases = argo.phases(workflow)
    assert {phases.get(step) for step in (*STEPS, f"{name}.onExit")} == {"Succeeded"}
    assert f"{name} · target argo" in completed.stderr
    ticked = {line.split()[1].partition("(")[0] for line in completed.stderr.splitlines() if line.startswith(" ✔")}
    assert ticked >= STEPS, completed.stderr
    assert f"--corpus {text}: 1 files" in completed.stderr, "it came along"
    assert str(tmp_path) not in json.dumps(workflow["spec"])
    keys = {entry.key for entry in open_store(f"s3://{BUCKET}/{name}", environment=cluster.store).list("")}
    assert any("checkpoints/" in key for key in keys)
    start_keys = [key for key in keys if "/starts/" in key]
    assert len(start_keys) == layout.NODES, "each checked pod became a node of the training"
    assert not [
        parameter["name"] for parameter in workflow["spec"]["arguments"]["parameters"] if parameter["value"] == ""
    ]


def test_steps_are_called_by_template_ref_from_anybodys_workflow(cluster: Cluster, text: str) -> None:
    rendered = everstep(
        cluster, "-m", "everstep", "templates", "--image", images.HOST, "--service-account", SERVICE_ACCOUNT,
        "--store-secret", STORE_SECRET,
    )  # fmt: skip
    cluster.kubectl.apply(rendered.stdout)
    (workflow,) = yaml.safe_load_all((ROOT / "templates/reuse.yaml").read_text())
    name = f"reuse-{secrets.token_hex(3)}"
    workflow["metadata"] = {"name": name}
    values_by_name = {"store": f"s3://{BUCKET}/{name}", "text": text}
    for parameter in workflow["spec"]["arguments"]["parameters"]:
        parameter["value"] = values_by_name[parameter["name"]]
    cluster.kubectl.create(workflow)

    def ended_workflow() -> dict[str, Any] | None:
        done_workflow = argo.workflow(cluster.kubectl, name)
        return done_workflow if done_workflow["status"].get("phase") in argo.ENDED else None

    done_workflow = wait_until(ended_workflow, f"the end of workflow {name}", 2 * PATIENCE_S, pause_s=1)
    assert done_workflow["status"]["phase"] == "Succeeded", json.dumps(done_workflow["status"], indent=1)
    assert argo.phases(done_workflow)["tokenize"] == "Succeeded"


@pytest.fixture
def training(cluster: Cluster, dataset: str) -> Iterator[ByArgo]:
    """A train step of Argo's; whatever is left of it is deleted."""
    new_training = ByArgo(cluster, dataset)
    try:
        yield new_training
    finally:
        new_training.delete()


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_step_that_was_lost_is_tried_again_and_takes_the_nodes_over(training: ByArgo, how: str) -> None:
    training.submit_paced("", faults.spec())
    training.wait_iteration(5)
    nodes = {pod["metadata"]["uid"] for pod in training.nodes().values()}
    (step,) = training.steps()
    if how == "evicted":
        faults.evict(training, step["metadata"]["name"])
    else:
        training.cluster.kubectl("delete", "pod", step["metadata"]["name"], "--wait=false")
    wait_until(lambda: len(training.records_of("MasterClaimed")) == 2, "the second master", PATIENCE_S, pause_s=0.5)
    faults.goes_on(training)
    assert {pod["metadata"]["uid"] for pod in training.nodes().values()} == nodes
    assert training.in_order()
    training.stop()
    assert training.finish() == "Succeeded", training.last_words()
    assert training.nodes() == {}


def test_a_step_whose_pod_is_lost_more_often_than_others_are_tried_again_goes_on(training: ByArgo) -> None:
    training.submit_paced("", faults.spec())
    training.wait_iteration(5)
    for number in range(RETRIES + 2):
        training.cluster.kubectl("delete", "pod", training.pod, "--force", "--grace-period=0")
        masters = number + 2
        wait_until(
            lambda masters=masters: len(training.records_of("MasterClaimed")) == masters or training.over(),
            f"master {masters}", PATIENCE_S, pause_s=0.5,
        )  # fmt: skip
        assert not training.over(), argo.workflow(training.cluster.kubectl, training.name)["status"]
    faults.goes_on(training)
    training.stop()
    assert training.finish() == "Succeeded", training.last_words()


def test_a_run_that_was_stopped_and_is_retried_does_no_iteration_again(training: ByArgo) -> None:
    training.submit_paced("", faults.spec())
    training.wait_iteration(10)
    stopped = everstep(training.cluster, "-m", "everstep", "workflow", "stop", training.name, "-n", layout.NAMESPACE)
    assert stopped.returncode == 0, stopped.stderr
    assert training.finish() == "Failed"
    wait_until(lambda: not training.nodes(), "the end of every pod", PATIENCE_S, pause_s=0.2)
    count_before = len(training.records())
    (end_record,) = training.records_of("JobEnded")
    trained = max(training.iteration(), end_record["iteration"])
    assert training.not_stored() == 0
    argo.retry(training)
    faults.goes_on(training)
    (first, *_) = (record["round"] for record in training.records()[count_before:] if record["kind"] == "RoundFormed")
    assert first["restore"]["iteration"] >= trained
    assert cost(training.reports(), end_record["time"]).lost == 0
    assert training.in_order()


@pytest.mark.parametrize("how", ["Stop", "Terminate", "deleted", "deadline"])
def test_when_a_run_is_over_for_good_none_of_its_pods_trains_on(
    training: ByArgo, how: str, record_property: Callable[[str, object], None]
) -> None:
    training.deadline_s = DEADLINE_S if how == "deadline" else None
    training.submit_paced("", faults.spec())
    training.wait_iteration(5)
    assert training.nodes()
    moment = time.time()
    if how == "deleted":
        training.delete()
    elif how == "deadline":
        wait_until(training.over, "the deadline", PATIENCE_S, pause_s=0.2)
        moment = training.began() + DEADLINE_S
    else:
        shutdown = json.dumps({"spec": {"shutdown": how}})
        training.cluster.kubectl("patch", "workflow", training.name, "--type=merge", "-p", shutdown)
    wait_until(lambda: not training.nodes(), "the end of every pod", PATIENCE_S, pause_s=0.2)
    record_property("seconds", f"{time.time() - moment:.1f}")
    if how != "deleted":
        assert training.finish() == "Failed"
    assert training.not_stored() == 0


DRILLED = ("pod-preempted", "master-lost", "everything-lost", "three-four-three")
"""Experiments of the drill whose faults are done to pods; the others need a process beside the node's."""


@pytest.mark.parametrize("names", [DRILLED[:1], DRILLED[1:3], DRILLED[3:], ("process-crash",)], ids="+".join)
def test_the_drill_holds_on_a_cluster_and_says_which_faults_it_cannot_inject(
    cluster: Cluster, text: str, names: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    name = f"drill-{secrets.token_hex(3)}"
    completed = everstep(
        cluster, "pipelines/chaos_drill.py", "--target", "argo", "--namespace", layout.NAMESPACE, "--name", name,
        "--image", images.HOST, "--service-account", SERVICE_ACCOUNT, "--store-secret", STORE_SECRET,
        "--store", f"s3://{BUCKET}/{name}", "--corpus", text, "--iterations", "200", "--only", ",".join(names),
    )  # fmt: skip
    workflow = argo.workflow(cluster.kubectl, name)
    assert completed.returncode == 0, completed.stderr + json.dumps(workflow["status"], indent=1)
    phases = argo.phases(workflow)
    assert phases["verdict"] == "Succeeded"
    assert {phases[f"chaos-{experiment}"] for experiment in names} == {"Succeeded"}
    verdict_lines = [line for line in completed.stderr.splitlines() if "verdict" in line]
    record_property("verdict", "; ".join(verdict_lines))
    holds_count = sum(experiment in DRILLED for experiment in names)
    assert f"{holds_count} of {len(names)} experiments hold" in completed.stderr
    assert ("not possible here" in completed.stderr) == (holds_count < len(names))
