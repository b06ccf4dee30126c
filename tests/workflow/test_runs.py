"""Runs as the `argo` command prints them, and manifests that a Python file declares."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from everstep.cli.run_views import list_view, log_lines, run_view, workflows
from everstep.errors import BadInput
from everstep.runtime.display.times import long_duration, short_duration
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.events import PodEnded, PodStarted, RunCreated
from everstep.runtime.workflow.engine.nodes import fnv32a
from everstep.runtime.workflow.manifest.files import load
from everstep.runtime.workflow.manifest.parse import ManifestError, parse
from everstep.runtime.workflow.run.view import table
from tests.workflow.running import manifest_text

NOW = 1767225720.0


def node(name: str, kind: str, second: int, boundary: str = "w", **more: Any) -> dict[str, Any]:
    """A node of the run w that took four seconds."""
    display = name.removeprefix("w.").rpartition("].")[2] if kind != "StepGroup" else name[1:]
    times = {"startedAt": f"2026-01-01T00:00:0{second}Z", "finishedAt": f"2026-01-01T00:00:0{second + 4}Z"}
    return {"id": f"id-{name}", "name": name, "displayName": display, "type": kind, "phase": "Succeeded",
            "boundaryID": f"id-{boundary}" if boundary else "", **times, **more}  # fmt: skip


def run() -> dict[str, Any]:
    """Steps: a, then b (tried twice) beside c."""
    nodes = [
        node("w", "Steps", 0, "", templateName="main"),
        node("w[0]", "StepGroup", 0, children=["id-w[0].a"]),
        node("w[0].a", "Pod", 0, templateName="say"),
        node("w[1]", "StepGroup", 4, children=["id-w[1].b", "id-w[1].c"]),
        node("w[1].b", "Retry", 4, templateName="say", children=["id-w[1].b(0)", "id-w[1].b(1)"]),
        node("w[1].b(0)", "Pod", 4, templateName="say", phase="Failed", message="main: Error (exit code 1)"),
        node("w[1].b(1)", "Pod", 5, templateName="say"),
        node("w[1].c", "Retry", 4, templateRef={"name": "library", "template": "hear"}, children=["id-w[1].c(0)"]),
        node("w[1].c(0)", "Pod", 4, templateRef={"name": "library", "template": "hear"}),
        node("w[1].d", "Skipped", 4, phase="Omitted"),
    ]
    status = {"phase": "Succeeded", "progress": "4/4", "startedAt": "2026-01-01T00:00:00Z",
              "finishedAt": "2026-01-01T00:01:02Z", "nodes": {node["id"]: node for node in nodes}}  # fmt: skip
    spec = {"arguments": {"parameters": [{"name": "who", "value": "you"}]}}
    return {"metadata": {"name": "w"}, "spec": spec, "status": status}


def pod(name: str, template: str) -> str:
    """The name that Argo gives a pod of the run."""
    return f"w-{template}-{fnv32a(name)}"


def test_a_run_is_shown_as_by_argo_get() -> None:
    rows = [
        ("STEP", "TEMPLATE", "PODNAME", "DURATION", "MESSAGE"),
        (" ✔ w", "main", "", "", ""),
        (" ├───✔ a", "say", pod("w[0].a", "say"), "4s", ""),
        (" └─┬─✔ b", "say", "", "", ""),
        ("   │ ├─✖ b(0)", "say", pod("w[1].b(0)", "say"), "4s", "main: Error (exit code 1)"),
        ("   │ └─✔ b(1)", "say", pod("w[1].b(1)", "say"), "4s", ""),
        ("   └─✔ c(0)", "library/hear", pod("w[1].c(0)", "hear"), "4s", ""),
    ]
    lines = run_view(run(), NOW).splitlines()
    assert lines[:11] == [
        "Name:                w",
        "Namespace:           default",
        "ServiceAccount:      unset",
        "Status:              Succeeded",
        "Created:             Thu Jan 01 00:00:00 +0000 (2 minutes ago)",
        "Started:             Thu Jan 01 00:00:00 +0000 (2 minutes ago)",
        "Finished:            Thu Jan 01 00:01:02 +0000 (58 seconds ago)",
        "Duration:            1 minute 2 seconds",
        "Progress:            4/4",
        "Parameters:",
        "  who:               you",
    ]
    assert [line.split() for line in lines[12:]] == [" ".join(row).split() for row in rows]
    assert {line.index(row[1]) for line, row in zip(lines[12:], rows, strict=True)} == {lines[12].index("TEMPLATE")}


def test_runs_are_listed_as_by_argo_list(tmp_path: Path) -> None:
    assert list_view(workflows(tmp_path), NOW) == "No workflows found"
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "workflow.json").write_text(json.dumps(run()))
    assert list_view(workflows(tmp_path), NOW).splitlines() == [
        "NAME   STATUS      AGE   DURATION   PRIORITY   MESSAGE",
        "w      Succeeded   2m    1m         0",
    ]


def test_logs_are_told_by_pod_and_chosen_by_pod_or_step(tmp_path: Path) -> None:
    workflow, folder = run(), tmp_path / "w"
    (folder / "logs").mkdir(parents=True)
    (folder / "lock").touch()
    names = {"w[0].a": "say", "w[1].c(0)": "hear"}
    for name, template in names.items():
        own = workflow["status"]["nodes"][f"id-{name}"]
        log = folder / "logs" / f"{name.removeprefix('w')}.log"
        log.write_text(f"from {name}\n")
        own |= {"podName": pod(name, template), "log": str(log)}
    workflow["metadata"]["uid"] = "u"
    (folder / "workflow.json").write_text(json.dumps(workflow))
    lines_told = [f"{pod(name, template)}: from {name}" for name, template in names.items()]
    assert list(log_lines(folder, "", follow=True)) == lines_told
    assert (
        list(log_lines(folder, "c", follow=False))
        == list(log_lines(folder, pod("w[1].c(0)", "hear"), False))
        == lines_told[1:]
    )
    for name in ("u-train/worker-0-0", "u-train/worker-1-0", "u-tune/worker-1-0", "u-train.master", "old(0)"):
        (folder / "logs" / f"{name}.log").parent.mkdir(exist_ok=True)
        (folder / "logs" / f"{name}.log").write_text(f"from {name}\n")
    of_nodes = [f"{name}: from u-{name}" for name in ("train/worker-0-0", "train/worker-1-0", "tune/worker-1-0")]
    assert list(log_lines(folder, "", follow=True)) == [*lines_told, *of_nodes]
    assert list(log_lines(folder, "worker-1", follow=False)) == of_nodes[1:]
    assert list(log_lines(folder, "tune/", follow=False)) == of_nodes[2:]
    with pytest.raises(BadInput, match="no step or node begins with 'z'"):
        list(log_lines(folder, "z", follow=False))


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (0.4, ("0s", "0 seconds")),
        (1, ("1s", "1 second")),
        (3700, ("1h", "1 hour 1 minute")),
        (9e4, ("1d", "1 day 1 hour")),
    ],
)
def test_times_are_said_in_their_largest_units(seconds: float, texts: tuple[str, str]) -> None:
    assert (short_duration(seconds), long_duration(seconds)) == texts


HERA = """
from hera.workflows import Container, Workflow
with Workflow(generate_name="hello-", entrypoint="main") as workflow:
    Container(name="main", image="i", command=["echo", "hello"])
"""
PRINTS = """
import sys
if __name__ == "__main__" and sys.argv[1:] == ["-o", "yaml"]:
    print('{apiVersion: argoproj.io/v1alpha1, kind: Workflow, metadata: {generateName: hello-}, spec: {}}')
"""


@pytest.mark.parametrize("text", [HERA, PRINTS])
def test_a_python_file_declares_its_workflow_or_prints_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(text)
    assert load([tmp_path / "pipeline.py"]).document.value["metadata"] == {"generateName": "hello-"}


def test_a_python_file_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("raise ValueError('no data')")
    with pytest.raises(ManifestError, match=r"pipeline.py: ValueError: no data$"):
        load([tmp_path / "pipeline.py"])


TWO = manifest_text("""
  - {name: main, dag: {tasks: [{name: short, template: t}, {name: a-task-with-a-name-that-is-very-long, template: t}]}}
  - {name: t, container: {image: i, command: ["true"]}}
""")


@pytest.mark.parametrize(
    ("width", "title"), [(60, "a-task-with-a-name-that…"), (160, "a-task-with-a-name-that-is-very-long")]
)
def test_long_names_leave_room_for_what_steps_say(width: int, title: str, tmp_path: Path) -> None:
    engine = Engine(parse(TWO), RunCreated(0.0, "w", "u"))
    (tmp_path / "logs").mkdir()
    for node in engine.pending_pods():
        engine.handle(PodStarted(0.0, node.name, 7, 7))
        engine.handle(PodEnded(2.0, node.name, 0))
        (tmp_path / "logs" / f"{node.display_name}.log").write_text("epoch 1\nloss 3.25 at 200 of 500\n")
    console = Console(width=width, color_system=None, file=io.StringIO(), force_terminal=True)
    with console.capture() as captured:
        console.print(table(engine, tmp_path, 20, width))
    lines = captured.get().splitlines()
    assert all("loss 3.25 at 200 of 500" in line and line.endswith("2.0 s") for line in lines)
    assert lines[1].startswith(f" ✔ {title} ")
