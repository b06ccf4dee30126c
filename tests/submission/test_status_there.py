"""`everstep status -n NAMESPACE` reads the journal of a job on a cluster, and tells what its pods wait for."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from everstep.cli.main import main
from everstep.runtime.journal import journal
from everstep.runtime.platform.kubernetes import Owner
from everstep.runtime.platform.kubernetes.sizes import sizes_config_map
from everstep.runtime.store import open_store
from everstep.runtime.submission.overdue_pods import LATE_S, overdue_pods
from tests.job.world import World, platform
from tests.submission.clusters import Cluster

Environment = dict[str, str]
SINCE = "2026-01-01T00:00:00Z"
LATE = datetime(2026, 1, 1, tzinfo=UTC).timestamp() + LATE_S + 1


def pod(name: str, deleted_at: str = SINCE, run: str = "run", phase: str = "Running") -> dict:
    """A step's, on machine m1."""
    labels = {"workflows.argoproj.io/workflow": run}
    metadata = {"name": name, "labels": labels, **({"deletionTimestamp": deleted_at} if deleted_at else {})}
    return {"metadata": metadata, "spec": {"nodeName": "m1", "containers": []}, "status": {"phase": phase}}


@pytest.fixture
def run(cluster: Cluster, by_kube: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A run whose step trains."""
    monkeypatch.setenv("KUBECONFIG", by_kube["KUBECONFIG"])
    parameters = [{"name": "store", "value": str(tmp_path / "store")}]
    workflow = cluster.add({"metadata": {"name": "run"}, "spec": {"arguments": {"parameters": parameters}}})
    job = f"{workflow['metadata']['uid']}-train"
    sizes = sizes_config_map(job, Owner("run", workflow["metadata"]["uid"]), {"worker": 2})
    cluster.config_maps[sizes["metadata"]["name"]] = sizes
    world = World(platform())
    world.join_all()
    claimed, _ = journal.claim(open_store(str(tmp_path / "store")), job, "m:1", 1.0)
    claimed.write(claimed.draft(world.records[1:]))
    return cluster


def test_a_steps_pod_on_a_dead_machine_is_told_with_what_mends_it(
    run: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run.pods += [pod("run-train-1"), pod("run-corpus-2", deleted_at=""), pod("other-train-3", run="other")]
    assert main(["status", "run", "-n", "ml"]) == 0
    page_text = capsys.readouterr().out
    assert page_text.startswith("uid-0-train: Running since")
    (line,) = (line for line in page_text.splitlines() if "pod" in line)
    assert "run-train-1" in line
    assert "kubectl delete pod run-train-1 -n ml --force --grace-period=0" in line
    assert main(["status", "run/train", "-n", "ml", "-o", "json"]) == 0
    (overdue,) = json.loads(capsys.readouterr().out)["overduePods"]
    assert (overdue["name"], overdue["host"], overdue["since"]) == ("run-train-1", "m1", SINCE)


@pytest.mark.parametrize("silent", [True, False])
def test_a_steps_pod_on_a_silent_machine_is_told_before_kubernetes_asks_it_to_end(
    run: Cluster, silent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run.pods += [pod("run-train-1", deleted_at="")]
    ready = {"type": "Ready", "status": "Unknown" if silent else "True", "lastTransitionTime": SINCE}
    run.objects["nodes/m1"] = {"metadata": {"name": "m1"}, "status": {"conditions": [ready]}}
    assert main(["status", "run", "-n", "ml"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "pod" in line]
    assert len(lines) == silent
    for line in lines:
        assert f"pod run-train-1 is on node m1, which has been silent since {SINCE}" in line
        assert "kubectl delete pod run-train-1 -n ml --force --grace-period=0" in line


def test_pods_that_end_in_time_or_have_ended_are_not_told() -> None:
    assert [
        pod["name"] for pod in overdue_pods([pod("a"), pod("b", deleted_at=""), pod("c", phase="Failed")], {}, LATE)
    ] == ["a"]
    assert overdue_pods([pod("a")], {}, LATE - 2) == []


def test_where_the_store_cannot_be_read_the_pod_is_told_all_the_same(
    run: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.pods += [pod("run-train-1")]
    shutil.rmtree(tmp_path / "store")
    assert main(["status", "run", "-n", "ml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("everstep status: run: ")
    assert "kubectl delete pod run-train-1" in line


@pytest.mark.parametrize(
    ("name", "part"), [("run/check", "give RUN/STEP with one of its training steps: train"), ("gone", "not found")]
)
def test_what_is_not_there_is_one_line(run: Cluster, capsys: pytest.CaptureFixture[str], name: str, part: str) -> None:
    assert main(["status", name, "-n", "ml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line
