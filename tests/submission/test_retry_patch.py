"""What a retry writes into a Workflow: the steps that failed and what follows them begin anew, the others stay."""

from typing import Any

from everstep.runtime.submission.retry_patch import formulate
from tests.submission.clusters import merge

NOW = "2026-01-02T00:00:00Z"


def node(name: str, kind: str, phase: str, *children: str, boundary: str = "run", **more: Any) -> dict[str, Any]:
    """Of a Workflow's status."""
    return {
        "id": name, "name": name, "displayName": name, "type": kind, "phase": phase, "templateName": "main",
        "boundaryID": boundary, "children": list(children), "message": "m", "finishedAt": NOW, **more,
    }  # fmt: skip


def workflow(*nodes: dict[str, Any]) -> dict[str, Any]:
    """One that has failed."""
    annotations = {"workflows.argoproj.io/pod-name-format": "v1"}
    labels = {"workflows.argoproj.io/completed": "true", "mine": "1"}
    status = {
        "phase": "Failed", "finishedAt": NOW, "message": "Stopped with strategy 'Stop'",
        "conditions": [{"type": "Completed", "status": "True"}], "nodes": {node["id"]: node for node in nodes},
    }  # fmt: skip
    metadata = {"name": "run", "resourceVersion": "7", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"shutdown": "Stop", "entrypoint": "main"}, "status": status}


def test_a_stopped_pipeline_begins_at_its_training_again() -> None:
    stopped_run = workflow(
        node("run", "DAG", "Failed", "tokenize", boundary="", outboundNodes=["evaluate"]),
        node("tokenize", "Retry", "Succeeded", "tokenize(0)"),
        node("tokenize(0)", "Pod", "Succeeded", "train", nodeFlag={"retried": True}),
        node("train", "Retry", "Failed", "train(0)", "train(1)"),
        node("train(0)", "Pod", "Error", nodeFlag={"retried": True}),
        node("train(1)", "Pod", "Failed", "evaluate", nodeFlag={"retried": True}),
        node("evaluate", "Skipped", "Omitted"),
        node("run.onExit", "Retry", "Succeeded", "run.onExit(0)", boundary=""),
        node("run.onExit(0)", "Pod", "Succeeded", boundary=""),
    )
    change, pods = formulate(stopped_run, NOW)
    assert pods == {"train(0)", "train(1)", "run.onExit(0)"}
    assert change["metadata"]["resourceVersion"] == "7"
    retried_run = merge(stopped_run, change)
    assert retried_run["spec"] == {"entrypoint": "main"}
    assert retried_run["metadata"]["labels"] == {"mine": "1"}
    status = retried_run["status"]
    assert not status.keys() & {"phase", "message", "finishedAt"}
    assert status["conditions"] == [{"type": "Completed", "status": "False"}]
    nodes = status["nodes"]
    assert {key: node["phase"] for key, node in nodes.items()} == {
        "run": "Running", "tokenize": "Succeeded", "tokenize(0)": "Succeeded", "train": "Running",
    }  # fmt: skip
    assert nodes["train"]["children"] == nodes["run"]["outboundNodes"] == []
    assert not nodes["train"].keys() & {"message", "finishedAt"}
    assert nodes["tokenize(0)"]["children"] == ["train"]


def test_a_failed_try_before_one_that_succeeded_stays() -> None:
    run = workflow(
        node("run", "DAG", "Failed", "a", boundary=""),
        node("a", "Retry", "Succeeded", "a(0)", "a(1)"),
        node("a(0)", "Pod", "Failed", nodeFlag={"retried": True}),
        node("a(1)", "Pod", "Succeeded", "b", nodeFlag={"retried": True}),
        node("b", "Pod", "Failed"),
    )
    change, pods = formulate(run, NOW)
    assert pods == {"b"}
    assert merge(run, change)["status"]["nodes"].keys() == {"run", "a", "a(0)", "a(1)"}


def test_groups_of_steps_around_a_failed_one_run_again_and_those_before_do_not() -> None:
    run = workflow(
        node("run", "Steps", "Failed", "[0]", boundary=""),
        node("[0]", "StepGroup", "Succeeded", "first"),
        node("first", "Pod", "Succeeded", "[1]"),
        node("[1]", "StepGroup", "Failed", "inner", "beside"),
        node("beside", "Pod", "Succeeded"),
        node("inner", "DAG", "Failed", "last"),
        node("last", "Pod", "Failed", boundary="inner"),
    )
    change, pods = formulate(run, NOW)
    assert pods == {"last"}
    assert {key: node["phase"] for key, node in merge(run, change)["status"]["nodes"].items()} == {
        "run": "Running", "[0]": "Succeeded", "first": "Succeeded", "[1]": "Running", "beside": "Succeeded",
        "inner": "Running",
    }  # fmt: skip


def test_what_was_terminated_has_no_deadline_and_a_template_of_its_own_no_shutdown() -> None:
    run = workflow(node("run", "Pod", "Failed", boundary=""))
    run["spec"]["activeDeadlineSeconds"] = 0
    run["status"]["storedWorkflowTemplateSpec"] = {"shutdown": "Terminate", "entrypoint": "main"}
    change, pods = formulate(run, NOW)
    retried_run = merge(run, change)
    assert pods == {"run"}
    assert retried_run["spec"] == {"entrypoint": "main"}
    assert retried_run["status"]["storedWorkflowTemplateSpec"] == {"entrypoint": "main"}
    assert retried_run["status"]["nodes"] == {}
