"""A step's own error is what people are shown, not Argo's reason for which it was not tried again."""

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.runtime.workflow.run.own_errors import node_message, workflow_message
from tests.workflow.running import sh, workflow

NOT_AGAIN = "retryStrategy.expression evaluated to false"
STRATEGIES: dict[str, dict[str, Any]] = {
    NOT_AGAIN: {"limit": 2, "retryPolicy": "Always", "expression": "asInt(lastRetry.exitCode) > 5"},
    "No more retries left": {"limit": 0},
}


@pytest.mark.parametrize("reason", STRATEGIES)
def test_a_step_that_is_not_tried_again_shows_its_own_error(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    step = {"name": "main", "retryStrategy": STRATEGIES[reason], "container": sh("echo no such corpus >&2; exit 3")}
    (tmp_path / "w.yaml").write_text(json.dumps(workflow([step])))
    assert main(["workflow", "run", "w.yaml"]) == 1
    error_text = capsys.readouterr().err
    assert "main: Error (exit code 3): no such corpus" in error_text
    assert error_text.endswith("Failed  main: Error (exit code 3)\n")
    for verb in (["get", "w"], ["list"]):
        assert main(["workflow", *verb]) == 0
        error_text += capsys.readouterr().out
    assert reason not in error_text
    status = json.loads((tmp_path / "runs/w/workflow.json").read_text())["status"]
    assert status["message"] == reason, "the status has Argo's own text"


def test_any_other_message_stands_as_it_is() -> None:
    nodes: dict[str, dict[str, Any]] = {
        "1": {"name": "w.a", "type": "Retry", "message": NOT_AGAIN, "children": ["2"]},
        "2": {"name": "w.a(0)", "type": "Pod", "message": "exit code 3"},
    }
    assert node_message(nodes["2"], nodes) == node_message(nodes["1"], nodes) == "exit code 3"
    assert node_message({**nodes["1"], "children": []}, nodes) == NOT_AGAIN
    assert workflow_message({"message": "child 'w-1' failed", "nodes": nodes}) == "child 'w-1' failed"
