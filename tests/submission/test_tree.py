"""The tree of a run, from what a real Argo recorded of it, and how it ended."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.submission.follow import View
from everstep.runtime.submission.tree import exit_code, is_offloaded, outputs, rows, workflow_nodes
from everstep.runtime.submission.view import table
from everstep.runtime.workflow.engine.nodes import Phase

GOLDEN = Path(__file__).parents[1] / "workflow" / "golden"


def recorded_workflow(case: str) -> dict[str, Any]:
    """A Workflow with the status that Argo gave it; its nodes by id, as the API has them."""
    status = json.loads((GOLDEN / f"{case}.json").read_text())
    nodes = {node["id"]: {**node, "name": name} for name, node in status["nodes"].items()}
    name = next(name for name in status["nodes"] if "." not in name and "[" not in name and "(" not in name)
    return {"metadata": {"name": name}, "status": {**status, "nodes": nodes}}


def tree_lines(workflow: dict[str, Any]) -> list[str]:
    """A line a node."""
    return [f"{row.branch}{row.title} {row.phase}" for row in rows(workflow)]


CASES = sorted(
    str(path.relative_to(GOLDEN).with_suffix(""))
    for path in GOLDEN.glob("*/*.json")
    if json.loads(path.read_text()).get("nodes")
)


def test_there_are_recorded_runs() -> None:
    assert len(CASES) > 300


def test_each_recorded_run_shows_every_node_once() -> None:
    for case in CASES:
        workflow = recorded_workflow(case)
        row_ids = [row.id for row in rows(workflow)]
        assert sorted(row_ids) == sorted(workflow_nodes(workflow)), case


def test_steps_stand_below_their_groups_and_items_below_their_task() -> None:
    steps = tree_lines(recorded_workflow("flow/aggregate-parameters"))
    assert [line for line in steps if "[" in line][:1] == ["├─[0] Succeeded"]
    assert any(line.startswith("│ ") for line in steps)
    tree = tree_lines(recorded_workflow("flow/aggregate-only-succeeded"))
    assert tree[0] == "aggregate-only-succeeded Succeeded"
    assert "├─t Failed" in tree or "└─t Failed" in tree
    assert any(line.endswith("─t(1:1) Failed") and line[0] in "│ " for line in tree)


def test_packed_nodes_are_unpacked() -> None:
    workflow = recorded_workflow("flow/aggregate-only-succeeded")
    packed = base64.b64encode(gzip.compress(json.dumps(workflow["status"].pop("nodes")).encode())).decode()
    workflow["status"]["compressedNodes"] = packed
    assert tree_lines(workflow) == tree_lines(recorded_workflow("flow/aggregate-only-succeeded"))


def test_nodes_that_are_kept_elsewhere_are_known_to_be_missing() -> None:
    away = {"metadata": {"name": "x"}, "status": {"phase": "Running", "offloadNodeStatusVersion": "fnv:1"}}
    assert is_offloaded(away)
    assert not is_offloaded(run("Running"))
    assert not is_offloaded({"metadata": {"name": "x"}})


def test_a_workflow_that_nobody_took_up_has_no_nodes() -> None:
    assert rows({"metadata": {"name": "x"}}) == []


def run(phase: str, *nodes: dict[str, Any]) -> dict[str, Any]:
    """A workflow with these nodes below its root."""
    root = {"id": "x", "name": "x", "type": "DAG", "phase": phase, "outboundNodes": [node["id"] for node in nodes]}
    return {"metadata": {"name": "x"}, "status": {"phase": phase, "nodes": {n["id"]: n for n in (root, *nodes)}}}


def pod(name: str, code: str, phase: Phase, finished: str, **outputs: str) -> dict[str, Any]:
    """A pod's node."""
    parameters = [{"name": key, "value": value} for key, value in outputs.items()]
    return {
        "id": f"x-{name}", "name": f"x.{name}", "displayName": name, "type": "Pod", "templateName": "t",
        "boundaryID": "x", "phase": phase.value, "finishedAt": finished,
        "outputs": {"exitCode": code, "parameters": parameters},
    }  # fmt: skip


def test_what_runs_is_seen_in_a_terminal_that_is_too_small_for_all() -> None:
    finished_pods = [pod(f"done{n}", "0", Phase.SUCCEEDED, "2026-01-01T00:00:05Z") for n in range(9)]
    workflow = run("Running", *finished_pods, pod("late", "", Phase.RUNNING, ""))
    view = View(workflow, rows=rows(workflow))
    assert len(table(view, 0.0, 24).rows) == 12
    small = table(view, 0.0, 8)
    assert len(small.rows) == 3
    assert "(9 that ended well are not shown)" in str(list(small.columns[1].cells)[-1])


@pytest.mark.parametrize(
    ("name", "title"), [("run.onExit", "report"), ("run.onExit(0)", "report(0)"), ("a.onExit", "a.onExit")]
)
def test_the_exit_handler_is_called_as_its_template(name: str, title: str) -> None:
    node = {"id": "1", "name": name, "displayName": name, "type": "Pod", "templateName": "report"}
    (row,) = rows({"metadata": {"name": "run"}, "status": {"nodes": {"1": node}}})
    assert row.title == title


def test_the_exit_code_is_the_first_failed_steps() -> None:
    late = pod("late", "2", Phase.FAILED, "2026-01-01T00:00:09Z")
    first = pod("first", "75", Phase.FAILED, "2026-01-01T00:00:05Z")
    assert exit_code(run("Failed", late, first)) == 75


@pytest.mark.parametrize("phase", ["Failed", "Error"])
def test_a_run_that_failed_without_a_code_is_1(phase: str) -> None:
    assert exit_code(run(phase)) == 1


def test_what_only_the_controller_refused_was_bad_input() -> None:
    status_of_refusal = {
        "phase": "Error",
        "message": "invalid spec: templates.main.tasks.a template name 'b' undefined",
    }
    assert exit_code({"metadata": {"name": "x"}, "status": status_of_refusal}) == 2


def test_the_outputs_are_those_of_the_steps_that_nothing_waits_for() -> None:
    last_run = run("Succeeded", pod("last", "0", Phase.SUCCEEDED, "2026-01-01T00:00:05Z", perplexity="31.2"))
    assert exit_code(last_run) == 0
    assert outputs(last_run) == {"perplexity": "31.2"}


def test_a_pods_name_follows_the_workflows_own_format() -> None:
    workflow = run("Running", pod("a", "", Phase.RUNNING, ""))
    assert rows(workflow)[1].pod.startswith("x-t-")
    workflow["metadata"]["annotations"] = {"workflows.argoproj.io/pod-name-format": "v1"}
    assert rows(workflow)[1].pod == "x-a"
