"""What finished steps made and somebody removed is made again: while the run goes on, and when it is resumed."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.running import run, sh, workflow

MAKE = "echo make >> ran; mkdir -p STORE/data/x; echo tokens > STORE/data/x/bin; echo STORE/data/x > /tmp/uri"
USE = "echo use >> ran; if test -e spoil; then rm spoil; rm -r STORE; fi; cat STORE/data/x/bin"
FROM = "{{tasks.make.outputs.parameters.uri}}"


def pipeline(folder: Path, **make: Any) -> dict[str, Any]:
    """`make` puts data into the store and names it, `use` reads it and removes the store first if it finds `spoil`;
    `other` needs neither.
    """
    store = str(folder / "store")
    tasks = [
        {"name": "make", "template": "make"},
        {"name": "use", "template": "use", "depends": "make",
         "arguments": {"parameters": [{"name": "uri", "value": FROM}]}},
        {"name": "other", "template": "other"},
    ]  # fmt: skip
    outputs = {"parameters": [{"name": "uri", "valueFrom": {"path": "/tmp/uri"}}]}
    return workflow([
        {"name": "main", "dag": {"tasks": tasks}},
        {"name": "make", "container": sh(MAKE.replace("STORE", store)), "outputs": outputs, **make},
        {"name": "use", "inputs": {"parameters": [{"name": "uri"}]}, "container": sh(USE.replace("STORE", store))},
        {"name": "other", "container": sh("echo other >> ran")},
    ], arguments={"parameters": [{"name": "store", "value": store}]})  # fmt: skip


def ran(folder: Path) -> list[str]:
    """What has run, in the order of the names."""
    return sorted((folder / "ran").read_text().split())


@pytest.mark.parametrize("make", [{}, {"retryStrategy": {"limit": 2}}])
def test_a_store_that_is_removed_while_the_run_goes_on_is_filled_again(
    make: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spoil").touch()
    assert run(tmp_path, pipeline(tmp_path, **make))["phase"] == "Succeeded"
    assert not (tmp_path / "spoil").exists(), "the fault must have fired"
    assert ran(tmp_path) == ["make", "make", "other", "use", "use"]
    assert "make: outputs are gone; runs again, with what comes after" in capsys.readouterr().err


def test_a_step_that_fails_while_all_outputs_are_there_is_not_run_again(tmp_path: Path) -> None:
    source = pipeline(tmp_path)
    source["spec"]["templates"][2]["container"] = sh("echo use >> ran; exit 3")
    assert run(tmp_path, source)["phase"] == "Failed"
    assert ran(tmp_path) == ["make", "other", "use"]


def test_a_resumed_run_makes_again_what_its_store_has_lost_and_nothing_else(tmp_path: Path) -> None:
    source = pipeline(tmp_path)
    assert run(tmp_path, source)["phase"] == "Succeeded"
    assert run(tmp_path, source)["phase"] == "Succeeded"
    assert ran(tmp_path) == ["make", "other", "use"]
    for lost_path in (tmp_path / "store/data/x/bin", tmp_path / "store"):
        shutil.rmtree(lost_path) if lost_path.is_dir() else lost_path.unlink()
        (tmp_path / "ran").unlink()
        assert run(tmp_path, source)["phase"] == "Succeeded"
        assert ran(tmp_path) == ["make", "use"]


def test_an_artifact_that_is_gone_is_made_again(tmp_path: Path) -> None:
    kept_artifact = {"name": "kept", "path": "/tmp/kept", "archive": {"none": {}}}
    tasks = [{"name": "a", "template": "a"}, {"name": "b", "template": "b", "depends": "a", "arguments": {"artifacts": [
        {"name": "kept", "from": "{{tasks.a.outputs.artifacts.kept}}"}]}}]  # fmt: skip
    source = workflow([
        {"name": "main", "dag": {"tasks": tasks}},
        {"name": "a", "container": sh("echo a >> ran; echo $$ > /tmp/kept"), "outputs": {"artifacts": [kept_artifact]}},
        {"name": "b", "inputs": {"artifacts": [kept_artifact]},
         "container": sh("echo b >> ran; test -e again && cat /tmp/kept")},
    ])  # fmt: skip
    assert run(tmp_path, source)["phase"] == "Failed"
    (tmp_path / "again").touch()
    shutil.rmtree(tmp_path / "runs/artifacts")
    assert run(tmp_path, source)["phase"] == "Succeeded"
    assert ran(tmp_path) == ["a", "a", "b", "b"]
