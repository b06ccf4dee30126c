"""A manifest made of templates, a run of it, and what it left: for tests that say no more than the templates."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.manifest.library import Library


def manifest_text(templates: str) -> str:
    """A manifest in YAML, of these templates, indented by two after a line break; `main` begins."""
    return f"""
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{name: w}}
spec:
  entrypoint: main
  templates:{templates}"""


ARGUMENT = manifest_text("""
  - name: main
    steps: [[{name: b, template: use, arguments: {parameters: [{name: x, value: "EXPRESSION"}]}}]]
  - name: use
    inputs: {parameters: [{name: x}]}
    container: {image: i, command: [echo, hi]}
""")
"""An expression as an argument of the one step."""


def workflow(templates: list[Any], **spec: Any) -> dict[str, Any]:
    """The manifest whose first template begins; `spec`: more of its fields."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "w"},
        "spec": {"entrypoint": templates[0]["name"], "templates": templates, **spec},
    }


def sh(text: str, **more: Any) -> dict[str, Any]:
    """A container of that shell command."""
    return {"image": "i", "command": ["sh", "-c", text], **more}


def run(folder: Path, source: dict[str, Any], library: Library | None = None, **options: Any) -> Any:
    """The status of a run of that manifest in `folder`/runs, where its pods begin; `options` are RunOptions'."""
    run_options = RunOptions("w", folder / "runs", library or Library(), **{"work_dir": folder, **options})
    asyncio.run(execute(source, run_options))
    return json.loads((folder / "runs/w/workflow.json").read_text())["status"]


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, library: Library, templates: list[Any], **spec: Any) -> Any:
    """The status of a run in that folder, of these templates."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return run(folder, workflow(templates, **spec), library)


def log(folder: Path, name: str) -> str:
    """What a pod has printed."""
    return (folder / "runs/w/logs" / f"{name}.log").read_text()
