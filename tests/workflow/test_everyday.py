"""What users of Argo write every day, in virtual time: each expectation is of Argo's sources or documentation.

Every case found something when it was written; what the recorded answers tell is not told again.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import yaml

from everstep.runtime.workflow import parse
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import GateOpened, PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.engine.nodes import Node
from everstep.runtime.workflow.expressions import evaluate
from everstep.runtime.workflow.expressions.tags import FUNCTIONS
from everstep.runtime.workflow.manifest.library import Library

CREATED = 1767225845.0
"""2026-01-01T00:04:05Z, a Thursday."""
POD = "container: {image: i, command: [echo]"


class RunEnd(NamedTuple):
    """A run at its end."""

    nodes: Mapping[str, Node]
    containers: Mapping[str, Mapping[str, Any]]
    """What each pod was started with, by node."""


def run_spec(spec: str, codes: Mapping[str, int] | None = None) -> RunEnd:
    """The run of that spec; `codes` are the exit codes, by node, that are not 0."""
    manifest = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": yaml.safe_load(spec)}
    engine, now = Engine(parse(manifest), RunCreated(CREATED, "w", "u")), CREATED
    containers: dict[str, Any] = {}
    for _ in range(1000):
        if engine.state.finished:
            break
        busy = engine.state.gates or engine.pending_pods() or engine.running_pods()
        now = now + 1 if busy else engine.next_deadline() or now
        for name in list(engine.state.gates):
            engine.handle(GateOpened(now, name))
        for node in engine.pending_pods():
            containers[node.name] = node.spec["container"]
            engine.handle(PodStarted(now, node.name, 7, 7))
        for node in engine.running_pods():
            engine.handle(PodEnded(now, node.name, (codes or {}).get(node.name, 0)))
        engine.advance(now)
    assert engine.state.finished, {node.name: node.phase for node in engine.state.nodes.values()}
    return RunEnd(engine.state.nodes, containers)


def test_each_part_of_the_creation_time_has_a_variable() -> None:
    parts = " ".join(f"{{{{workflow.creationTimestamp.{letter}}}}}" for letter in "YymBbdAaHIMSpZzLs")
    run = run_spec(f"""
      entrypoint: main
      templates: [{{name: main, {POD}, args: ["{parts}"]}}}}]
    """)
    date_text = "2026 26 01 January Jan 01 Thursday Thu 00 12 04 05 AM UTC +0000 .000 1767225845"
    assert run.containers["w"]["args"] == [date_text]


def test_a_template_s_patch_stands_over_the_workflow_s_and_both_read_inputs() -> None:
    run = run_spec(f"""
      entrypoint: main
      arguments: {{parameters: [{{name: x, value: five}}]}}
      podSpecPatch: |
        containers:
        - name: main
          env: [{{name: A, value: workflow}}, {{name: B, value: "{{{{inputs.parameters.x}}}}"}}]
      templates:
      - name: main
        inputs: {{parameters: [{{name: x}}]}}
        podSpecPatch: '{{"containers": [{{"name": "main", "env": [{{"name": "A", "value": "own"}}]}}]}}'
        {POD}}}
    """)
    env = {variable["name"]: variable["value"] for variable in run.containers["w"]["env"]}
    assert env == {"A": "own", "B": "five"}


def test_a_template_s_annotation_names_its_nodes() -> None:
    spec = f"""
      entrypoint: main
      templates:
      - name: main
        steps: [[{{name: a, template: t, arguments: {{parameters: [{{name: x, value: blue}}]}}}}]]
      - name: t
        inputs: {{parameters: [{{name: x}}]}}
        annotations: {{workflows.argoproj.io/display-name: "os-{{{{inputs.parameters.x}}}}"}}
        retryStrategy: {{limit: 1}}
        {POD}}}
    """
    display_names = {node.name: node.display_name for node in run_spec(spec).nodes.values()}
    assert display_names == {"w": "w", "w[0]": "[0]", "w[0].a": "os-blue", "w[0].a(0)": "a(0)"}
    wrong = run_spec(spec.replace("blue", "blue sky")).nodes["w[0].a"]
    assert wrong.message == "displayName must match the regex ^[a-zA-Z0-9][a-zA-Z0-9-.]{0,61}[a-zA-Z0-9]$"


def test_an_attempt_after_one_without_exit_code_reads_0() -> None:
    run = run_spec(
        f"""
      entrypoint: main
      templates:
      - name: main
        retryStrategy: {{limit: 1}}
        steps:
        - - name: a
            template: t
            arguments: {{parameters: [{{name: x, value: "{{{{lastRetry.exitCode}}}}"}}]}}
      - name: t
        inputs: {{parameters: [{{name: x}}]}}
        {POD}, args: ["{{{{inputs.parameters.x}}}}"]}}
    """,
        {"w(0)[0].a": 3},
    )
    assert [run.containers[f"w({number})[0].a"]["args"] for number in (0, 1)] == [["0"], ["0"]]


def test_failures_are_told_in_their_own_letters() -> None:
    run = run_spec(
        f"""
      entrypoint: main
      onExit: bye
      templates:
      - {{name: main, steps: [[{{name: a, template: t, withItems: [größe]}}]]}}
      - {{name: t, {POD}}}}}
      - {{name: bye, {POD}, args: ["{{{{workflow.failures}}}}"]}}}}
    """,
        {"w[0].a(0:größe)": 1},
    )
    assert '\\"displayName\\":\\"a(0:größe)\\"' in run.containers["w.onExit"]["args"][0]


TEMPLATE = {
    "kind": "WorkflowTemplate",
    "metadata": {"name": "t"},
    "spec": {
        "entrypoint": "main",
        "suspend": True,
        "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
        "hooks": {"exit": {"template": "main"}, "running": {"template": "main", "expression": "true"}},
        "podMetadata": {"labels": {"team": "blue", "kind": "x"}},
        "templates": [{"name": "main", "container": {"image": "i", "command": ["true"]}}],
    },
}


def test_a_workflow_is_merged_deep_with_its_workflow_template() -> None:
    own = {
        "workflowTemplateRef": {"name": "t"},
        "volumes": [{"name": "b", "hostPath": {"path": "/b"}}],
        "hooks": {"exit": {"template": "other"}},
        "podMetadata": {"labels": {"kind": "y"}},
    }
    merged = Library.from_objects([TEMPLATE]).merged_spec(own)
    assert merged is not None
    assert {volume["name"]: "hostPath" in volume for volume in merged["volumes"]} == {"a": False, "b": True}
    assert {name: hook["template"] for name, hook in merged["hooks"].items()} == {"exit": "other", "running": "main"}
    assert merged["podMetadata"] == {"labels": {"team": "blue", "kind": "y"}}
    assert "suspend" not in merged


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sprig.title('north-west of x')", "North-West Of X"),
        ("sprig.regexSplit(',', 'a,b,c', 1)", ["a,b,c"]),
        ("sprig.regexSplit(',', 'a,b,c', 2)", ["a", "b,c"]),
        ("sprig.regexSplit(',', 'a,b,c', -1)", ["a", "b", "c"]),
    ],
)
def test_sprig_s_functions_give_what_sprig_s_give(text: str, value: Any) -> None:
    assert evaluate(text, {}, FUNCTIONS) == value
