"""`everstep workflow list|get|logs|stop|terminate|retry -n NAMESPACE`: runs of a cluster, by both ways to it."""

import pytest

from everstep.cli.main import main
from tests.submission.clusters import Cluster
from tests.submission.conftest import Environment

STARTED = "2026-01-01T00:00:00Z"


def node(name: str, phase: str, kind: str = "Pod") -> dict[str, object]:
    """Of a Workflow's status."""
    return {
        "id": name, "name": name, "displayName": name, "type": kind, "phase": phase, "templateName": "main",
        "startedAt": STARTED,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def run(cluster: Cluster, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A run that goes on, and one that no controller has seen."""
    monkeypatch.delenv("ARGO_SERVER", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    old_names = {"workflows.argoproj.io/pod-name-format": "v1"}
    metadata = {"name": "first", "creationTimestamp": STARTED, "annotations": old_names}
    nodes = {"first": node("first", "Running", "DAG"), "a": node("a", "Succeeded"), "b": node("b", "Running")}
    status = {"phase": "Running", "startedAt": STARTED, "nodes": nodes}
    cluster.add({"metadata": metadata, "spec": {}, "status": status})
    cluster.add({"metadata": {"name": "unseen", "creationTimestamp": STARTED}, "spec": {}})
    cluster.logs = {"a": ["hello", "you"], "b": ["there"]}
    return cluster


def test_runs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "list", "-n", "ml"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [["NAME", "STATUS"], ["first", "Running"], ["unseen", "Pending"]]


@pytest.mark.parametrize(("name", "status"), [("first", "Running"), ("unseen", "Pending")])
def test_a_run_is_shown(name: str, status: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "get", name, "-n", "ml"]) == 0
    assert f"Status:              {status}\n" in capsys.readouterr().out


def test_logs_are_those_of_all_pods_or_of_the_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "logs", "first", "-n", "ml"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a: hello", "a: you", "b: there"]
    assert main(["workflow", "logs", "first", "b", "-n", "ml"]) == 0
    assert capsys.readouterr().out.splitlines() == ["b: there"]


def node_pod(name: str, run: str, phase: str) -> dict[str, object]:
    """Of a node of that run's training."""
    metadata = {
        "name": f"{run}-x-{name}", "labels": {"everstep/node": name}, "ownerReferences": [{"name": run, "uid": "u"}],
        "annotations": {"everstep/job-name": "u-train"},
    }  # fmt: skip
    return {"metadata": metadata, "spec": {"containers": [{"name": "agent"}]}, "status": {"phase": phase}}


@pytest.fixture
def nodes(run: Cluster) -> Cluster:
    """One that trains, one that has ended, one that waits for a machine, and one of another run."""
    run.pods = [
        node_pod("worker-1-0", "first", "Running"), node_pod("worker-0-0", "first", "Failed"),
        node_pod("worker-2-0", "first", "Pending"), node_pod("worker-0-0", "other", "Running"),
    ]  # fmt: skip
    run.logs |= {"first-x-worker-1-0": ["trains"], "first-x-worker-0-0": ["failed"], "other-x-worker-0-0": ["another"]}
    return run


@pytest.mark.parametrize("flags", [(), ("--follow",)], ids=["as they are", "followed"])
def test_logs_have_the_lines_of_the_trainings_nodes(
    flags: tuple[str, ...], nodes: Cluster, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.workflows["first"]["status"] |= {"phase": "Succeeded", "finishedAt": STARTED}
    nodes.workflows["first"]["status"]["nodes"]["b"]["phase"] = "Succeeded"
    assert main(["workflow", "logs", "first", "-n", "ml", *flags]) == 0
    lines, said = capsys.readouterr()
    assert {"a: hello", "b: there"} <= set(lines.splitlines())
    of_nodes = {line for line in lines.splitlines() if line.startswith("train/")}
    if "ARGO_SERVER" in environment:
        assert not of_nodes
        assert "without its nodes' lines: " in said
        assert "without ARGO_SERVER the kube context does" in said
    else:
        assert of_nodes == {"train/worker-0-0: failed", "train/worker-1-0: trains"}
        assert not said
        asked_containers = {query["container"] for _, path, query in nodes.asked if "worker" in path}
        assert asked_containers == {"agent"}


@pytest.mark.parametrize("environment", ["custom resource"], indirect=True)
def test_who_may_not_list_pods_sees_the_steps_lines(nodes: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    nodes.missing.add("list pods")
    assert main(["workflow", "logs", "first", "-n", "ml"]) == 0
    lines, said = capsys.readouterr()
    assert lines.splitlines() == ["a: hello", "a: you", "b: there"]
    (line,) = said.splitlines()
    assert "you need that right" in line


def test_the_lines_of_one_node_are_shown(
    nodes: Cluster, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["workflow", "logs", "first", "worker-1", "-n", "ml"])
    if "ARGO_SERVER" in environment:
        assert code == 2
    else:
        assert (code, capsys.readouterr().out) == (0, "train/worker-1-0: trains\n")


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_a_run_that_has_ended_is_waited_for_and_watched(
    run: Cluster, phase: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run.workflows["first"]["status"] |= {"phase": phase, "finishedAt": STARTED}
    assert main(["workflow", "wait", "first", "-n", "ml"]) == code
    assert capsys.readouterr().out == f"first {phase} at {STARTED}\n"
    assert main(["workflow", "watch", "first", "-n", "ml"]) == code
    assert f"Status:              {phase}\n" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["stop", "terminate"])
def test_a_run_is_ended(run: Cluster, verb: str) -> None:
    assert main(["workflow", verb, "first", "-n", "ml"]) == 0
    assert run.workflows["first"]["spec"] == {"shutdown": verb.capitalize()}


def test_a_run_that_has_failed_is_retried(
    run: Cluster, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run.workflows["first"]["status"]
    status |= {"phase": "Failed", "finishedAt": STARTED}
    status["nodes"]["first"] |= {"phase": "Failed", "children": ["a", "b"]}
    status["nodes"]["b"]["phase"] = "Failed"
    label = {"workflows.argoproj.io/workflow": "first"}
    run.pods = [{"metadata": {"name": name, "uid": name, "labels": label}} for name in ("a", "b")]
    assert main(["workflow", "retry", "first", "-n", "ml"]) == 0
    assert "asked Argo to retry" in capsys.readouterr().err
    if "ARGO_SERVER" not in environment:
        status = run.workflows["first"]["status"]
        assert "phase" not in status
        assert {key: node["phase"] for key, node in status["nodes"].items()} == {"first": "Running", "a": "Succeeded"}
        assert [pod["metadata"]["name"] for pod in run.pods] == ["a"]


@pytest.mark.parametrize("environment", ["custom resource"], indirect=True)
def test_a_run_whose_steps_are_elsewhere_is_retried_by_an_argo_server_only(
    run: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run.workflows["first"]["status"] = {"phase": "Failed", "offloadNodeStatusVersion": "fnv:1"}
    assert main(["workflow", "retry", "first", "-n", "ml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "set ARGO_SERVER, or `argo -n ml retry first`" in line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["get", "gone"], '"gone" not found'),
        (["stop", "gone"], '"gone" not found'),
        (["wait", "gone"], '"gone" not found'),
        (["watch", "gone"], '"gone" not found'),
        (["logs", "first", "x"], "no step or node begins with 'x'"),
        (["retry", "first"], "only a run that has failed is retried, and it is Running"),
        (["stop", "first", "--message", "m"], "acts on the whole run"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", *words, "-n", "ml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


def test_a_run_that_has_ended_is_not_stopped(run: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    run.workflows["first"]["status"]["phase"] = "Succeeded"
    assert main(["workflow", "stop", "first", "-n", "ml"]) == 2
    assert "has already ended: Succeeded" in capsys.readouterr().err
