"""`everstep templates`, what is committed of it, and a workflow of somebody else's that calls the steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from everstep.cli import main

ROOT = Path(__file__).parents[2]
FILES = ROOT / "templates" / "chart" / "files"
STEPS = {"model", "corpus", "preprocess", "check", "train", "evaluate", "report"}


def test_what_is_committed_is_what_it_writes(tmp_path: Path) -> None:
    """To mend: everstep templates -o templates/chart/files."""
    assert main(["templates", "-o", str(tmp_path)]) == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(written) == {f"everstep-{step}.yaml" for step in STEPS}
    assert written == {path.name: path.read_text() for path in FILES.glob("everstep-*.yaml")}


def test_each_needs_of_its_caller_only_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable `workflow.parameters.*` or `workflow.status` would be refused in a workflow that has it not."""
    assert main(["templates", "--image", "registry.example/e:1", "--store-secret", ""]) == 0
    for manifest in yaml.safe_load_all(capsys.readouterr().out):
        text = json.dumps(manifest)
        (template,) = manifest["spec"]["templates"]
        for variable in ("{{workflow.parameters", "{{workflow.status", "{{workflow.failures", "{{workflow.duration"):
            assert variable not in text
        assert template["container"]["image"] == "registry.example/e:1"
        assert "secretKeyRef" not in text
        assert manifest["spec"]["entrypoint"] == template["name"]
        known = {one["name"] for one in manifest["spec"]["arguments"]["parameters"]}
        assert known == {one["name"] for one in template["inputs"]["parameters"]} >= {"store"}


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["templates", "-o", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"everstep templates: -o {tmp_path}/file: File exists\n"


def test_anybodys_workflow_calls_them(tmp_path: Path) -> None:
    """The example beside the chart, as its first lines say."""
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"Water runs downhill, {number} days of the week. " * 40)
    command = [sys.executable, "-m", "everstep"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run("templates", "--store-secret=", "-o", "manifests").returncode == 0
    done = run(
        "workflow", "run", str(ROOT / "templates" / "reuse.yaml"), "-n", "reuse", "--with", "manifests",
        "-p", f"store={tmp_path}/store", "-p", f"text={tmp_path}/*.txt",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + "".join(p.read_text() for p in (tmp_path / "runs").rglob("*.log"))
    nodes = json.loads((tmp_path / "runs" / "reuse" / "workflow.json").read_text())["status"]["nodes"].values()
    assert {n["displayName"]: n["phase"] for n in nodes}["tokenize"] == "Succeeded"
