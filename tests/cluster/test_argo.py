"""Argo's own controller runs what Everstep renders: the submitted pipeline, and steps called by templateRef."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import chaos_drill
from everstep.runtime.store import open_store
from everstep.steps.chaos.drill import CASES
from everstep.steps.template import RETRIES
from tests.cluster import argo, faults, images, layout
from tests.cluster.argo import ByArgo
from tests.cluster.commands import argo_flags, everstep, run_python
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import OF_CHAOS, SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.cluster.trainings import PATIENCE_S
from tests.harness import ROOT, wait_until

STEPS = {"corpus", "model", "tokenize", "check", "train", "evaluate"}
DEADLINE_S = 150
"""Of a run that has one: time enough to begin to train."""

pytestmark = pytest.mark.usefixtures("controller")


def test_the_pipeline_is_submitted_followed_and_trains_in_pods(cluster: Cluster, lines: bytes, tmp_path: Path) -> None:
    text = tmp_path / "mine.jsonl"
    text.write_bytes(lines)
    name = f"pipeline-{secrets.token_hex(3)}"
    words = [*argo_flags(name), "--corpus", str(text), "--iterations", "40"]
    completed = run_python(cluster, "pipelines/llama_finetune.py", *words)
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
        cluster, "templates", "--image", images.HOST, "--service-account", SERVICE_ACCOUNT,
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


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_step_that_was_lost_is_tried_again_and_takes_the_nodes_over(by_argo: ByArgo, how: str) -> None:
    by_argo.submit_paced("", faults.spec())
    by_argo.wait_iteration(5)
    nodes = {pod["metadata"]["uid"] for pod in by_argo.nodes().values()}
    (step,) = by_argo.steps()
    if how == "evicted":
        faults.evict(by_argo, step["metadata"]["name"])
    else:
        by_argo.cluster.kubectl("delete", "pod", step["metadata"]["name"], "--wait=false")
    wait_until(lambda: len(by_argo.records_of("MasterClaimed")) == 2, "the second master", PATIENCE_S, pause_s=0.5)
    faults.goes_on(by_argo)
    assert {pod["metadata"]["uid"] for pod in by_argo.nodes().values()} == nodes
    assert by_argo.in_order()
    by_argo.stop()
    assert by_argo.finish() == "Succeeded", by_argo.last_words()
    assert by_argo.nodes() == {}


def test_a_step_whose_pod_is_lost_more_often_than_others_are_tried_again_goes_on(by_argo: ByArgo) -> None:
    by_argo.submit_paced("", faults.spec())
    by_argo.wait_iteration(5)
    for number in range(RETRIES + 2):
        by_argo.cluster.kubectl("delete", "pod", by_argo.pod, "--force", "--grace-period=0")
        masters = number + 2
        wait_until(
            lambda masters=masters: len(by_argo.records_of("MasterClaimed")) == masters or by_argo.over(),
            f"master {masters}", PATIENCE_S, pause_s=0.5,
        )  # fmt: skip
        assert not by_argo.over(), argo.workflow(by_argo.cluster.kubectl, by_argo.name)["status"]
    faults.goes_on(by_argo)
    by_argo.stop()
    assert by_argo.finish() == "Succeeded", by_argo.last_words()


@pytest.mark.parametrize("how", ["Stop", "Terminate", "deleted", "deadline"])
def test_when_a_run_is_over_for_good_none_of_its_pods_trains_on(
    by_argo: ByArgo, how: str, record_property: Callable[[str, object], None]
) -> None:
    by_argo.deadline_s = DEADLINE_S if how == "deadline" else None
    by_argo.submit_paced("", faults.spec())
    by_argo.wait_iteration(5)
    assert by_argo.nodes()
    moment = time.time()
    if how == "deleted":
        by_argo.delete()
    elif how == "deadline":
        wait_until(by_argo.over, "the deadline", PATIENCE_S, pause_s=0.2)
        moment = by_argo.began() + DEADLINE_S
    else:
        shutdown = json.dumps({"spec": {"shutdown": how}})
        by_argo.cluster.kubectl("patch", "workflow", by_argo.name, "--type=merge", "-p", shutdown)
    wait_until(lambda: not by_argo.nodes(), "the end of every pod", PATIENCE_S, pause_s=0.2)
    record_property("seconds", f"{time.time() - moment:.1f}")
    if how != "deleted":
        assert by_argo.finish() == "Failed"
    assert by_argo.not_stored() == 0


@pytest.mark.parametrize("experiment", CASES)
def test_the_drill_holds_on_a_cluster(
    cluster: Cluster, text: str, experiment: str, record_property: Callable[[str, object], None]
) -> None:
    name = f"drill-{secrets.token_hex(3)}"
    words = [*argo_flags(name), "--corpus", text, "--iterations", "200", "--only", experiment]
    completed = run_python(cluster, "pipelines/chaos_drill.py", *words)
    workflow = argo.workflow(cluster.kubectl, name)
    assert completed.returncode == 0, completed.stderr + json.dumps(workflow["status"], indent=1)
    phases = argo.phases(workflow)
    assert {phases["verdict"], phases[f"chaos-{experiment}"]} == {"Succeeded"}
    row = chaos_drill.rows_of(chaos_drill.fetch_page(cluster, name))[experiment]
    record_property("row", row.text)
    assert row.holds


def test_a_drill_without_any_fault_fails_and_its_page_says_why(cluster: Cluster, text: str) -> None:
    with may_add_no_containers(cluster):
        name = f"drill-{secrets.token_hex(3)}"
        words = [*argo_flags(name), "--corpus", text, "--iterations", "20", "--only", "store-lost"]
        completed = run_python(cluster, "pipelines/chaos_drill.py", *words)
    phases = argo.phases(argo.workflow(cluster.kubectl, name))
    assert (completed.returncode, phases["verdict"], phases["chaos-store-lost"]) == (1, "Failed", "Succeeded")
    assert "0 of 1 experiments hold; not possible here: store-lost" in completed.stderr
    row = chaos_drill.rows_of(chaos_drill.fetch_page(cluster, name))["store-lost"]
    assert row.cells["what happened"].startswith("not possible here: no container with NET_ADMIN can be added to pod")
    assert 'cannot patch resource "pods/ephemeralcontainers"' in row.cells["what happened"]


@contextmanager
def may_add_no_containers(cluster: Cluster) -> Iterator[None]:
    """The chaos step's account lacks that right meanwhile."""
    added = "pods/ephemeralcontainers"
    role = cluster.kubectl.get("role", OF_CHAOS)
    assert role
    rules = [rule for rule in role["rules"] if added not in rule["resources"]]
    cluster.kubectl("patch", "role", OF_CHAOS, "--type=merge", "-p", json.dumps({"rules": rules}))
    try:
        yield
    finally:
        cluster.kubectl("patch", "role", OF_CHAOS, "--type=merge", "-p", json.dumps({"rules": role["rules"]}))
