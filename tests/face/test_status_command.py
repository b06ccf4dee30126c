"""`everstep status` reads what a job's journal says, also when nobody is at work any more."""

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.cli.status import read
from everstep.ended_nodes import end_nodes_of
from everstep.runtime.journal import journal, snapshots
from everstep.runtime.store import open_store


def test_it_tells_conditions_restarts_round_checkpoint_and_nodes(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "r1", "--runs", str(runs)]) == 0
    status_text = capsys.readouterr().out
    assert status_text.startswith("u-train: Running since 1970-01-01T00:16:40Z")
    assert "round 2: 2 nodes, 2 workers, from iteration 40" in status_text
    assert "newest checkpoint: iteration 40" in status_text
    assert "restarts: 1 (by faults that count: trainer 1)" in status_text
    types = [line.split()[:2] for line in status_text.splitlines() if line.split()[1:2] in (["True"], ["False"])]
    assert [kind for kind, _ in types] == ["Pending", "Creating", "Running", "Restarting", "Running"]
    assert [holds for _, holds in types] == ["False"] * 4 + ["True"]
    assert "trainer-1-1" in status_text
    assert "trainer-1-0" not in status_text.split("NODE")[1]


def test_programs_get_the_same_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "r1/train", "--runs", str(runs), "-o", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["RestartCount"] == {"trainer": 1}
    assert status["checkpoint"] == {"round": 1, "iteration": 40, "manifest": "jobs/u-train/m.json"}
    assert status["conditions"][3]["reason"] == "NodeLost"
    assert {node["name"]: node["ranks"] for node in status["nodes"]} == {"trainer-0-0": [0, 0], "trainer-1-1": [1, 1]}


def test_only_what_came_after_the_newest_snapshot_is_read(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(str(runs.parent / "store"))
    whole = status_of(runs, capsys)
    snapshots.write(store, "u-train", 2, journal.read_state(store, "u-train"))
    for entry in list(store.list("jobs/u-train/journal/")):
        store.put(entry.key, b"unreadable")
    assert status_of(runs, capsys) == whole


def status_of(runs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints."""
    assert main(["status", "r1", "--runs", str(runs)]) == 0
    return capsys.readouterr().out


def test_a_job_without_a_run_is_found_in_its_store(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = runs.parent / "store"
    assert main(["status", f"{store}/jobs/u-train"]) == 0
    assert capsys.readouterr().out == status_of(runs, capsys)
    assert main(["status", f"{store}/jobs/other"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"everstep status: {store}/jobs/other: no job of that name there; `everstep checkpoint ls ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["r2", "r1/evaluate"])
def test_an_unknown_run_or_step_is_one_line_and_exit_code_2(
    runs: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", name, "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("everstep status: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("change", [{"spec": {}}, {"spec": {"arguments": {"parameters": [{"name": "nodes"}]}}}])
def test_a_run_whose_workflow_names_no_store_is_one_line_and_exit_code_2(
    runs: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs / "r1" / "workflow.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["status", "r1", "--runs", str(runs)]) == 2
    error = capsys.readouterr().err
    assert "its workflow has no parameter `store`" in error
    assert error.count("\n") == 1
    path.write_text("{")
    assert main(["status", "r1", "--runs", str(runs)]) == 2
    assert "workflow.json: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "report"])
def test_a_job_that_no_key_can_name_is_one_line_and_exit_code_2(
    runs: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, f"{runs.parent}/store/jobs/a b"]) == 2
    error = capsys.readouterr().err
    assert "not a key: " in error
    assert error.count("\n") == 1


def test_what_a_worker_wrote_moves_no_cursor(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = read(runs, "r1")
    monkeypatch.setattr("everstep.cli.status.read", lambda *_: {**status, "error": "line\n\x1b[2J\x1b]0;mine\x07"})
    assert status_of(runs, capsys).endswith("\nline\n\\x1b[2J\\x1b]0;mine\\x07\n")


def test_a_job_that_ended_with_its_run_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs / "r1" / "workflow.json"
    workflow = json.loads(path.read_text())
    path.write_text(json.dumps({**workflow, "status": {"phase": "Failed", "finishedAt": "2026-01-31T12:00:00Z"}}))
    assert status_of(runs, capsys).startswith("u-train: ended with its run at 2026-01-31T12:00:00Z")


def test_what_a_run_that_ended_at_once_has_lost_is_said(runs: Path) -> None:
    uri = str(runs.parent / "store")
    manifest = {"spec": {"arguments": {"parameters": [{"name": "store", "value": uri}]}}}
    open_store(uri).put("jobs/u-train/telemetry/1.jsonl", b'{"iteration": 55, "loss": 1.0}\n')
    (sentence,) = end_nodes_of(runs / "r1", manifest)
    assert sentence.endswith("train: ended after iteration 55; the store has iteration 40, later ones are lost")


def test_it_is_shown_again_until_somebody_stops_it(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("everstep.cli.status.time.sleep", nap)
    assert main(["status", "r1", "--watch", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.count("u-train: Running") == len(naps) == 2


def test_of_a_run_that_ended_before_its_job_it_is_shown_once(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nap(_: float) -> None:
        raise AssertionError("nothing changes any more")

    path = runs / "r1" / "workflow.json"
    workflow = json.loads(path.read_text())
    path.write_text(json.dumps({**workflow, "status": {"phase": "Failed", "finishedAt": "2026-01-31T12:00:00Z"}}))
    monkeypatch.setattr("everstep.cli.status.time.sleep", nap)
    assert main(["status", "r1", "--watch", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.count("u-train: ended with its run") == 1
