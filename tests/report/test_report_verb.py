"""`everstep report RUN`: from what a run left, whether it has ended or not."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from everstep.cli.main import main
from everstep.runtime.store import open_store
from everstep.runtime.store.directory import DirectoryStore


@pytest.fixture
def runs(maker: ModuleType, tmp_path: Path) -> Path:
    maker_run = maker.full_run(tmp_path)
    if maker_run.folder.name != maker_run.name:
        maker_run.folder.rename(maker_run.folder.with_name(maker_run.name))
    folder = maker_run.folder.with_name(maker_run.name)
    workflow = json.loads((folder / "workflow.json").read_text())
    workflow.setdefault("spec", {})["arguments"] = {"parameters": [{"name": "store", "value": str(maker_run.store)}]}
    (folder / "workflow.json").write_text(json.dumps(workflow))
    return folder.parent


def test_the_ledger_of_a_run_adds_up_in_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "llama-finetune-x7k2", "-o", "json", "--runs", str(runs)]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert sum(entry["share"] for entry in job["ledger"]) == pytest.approx(1.0)
    assert job["iteration"] == 200
    assert len(job["faults"]) == 2
    assert job["goodput"] + sum(job["badput"].values()) == pytest.approx(1.0)


def test_for_people_it_is_markdown_whose_cells_break_no_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "llama-finetune-x7k2", "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# llama-finetune-x7k2: ")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) > 10
    assert "<" not in "".join(tables)


def test_what_a_step_wrote_moves_no_cursor(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs / "llama-finetune-x7k2" / "workflow.json"
    workflow = json.loads(path.read_text())
    for node in workflow["status"]["nodes"].values():
        node["message"] = "\x1b[2J\x1b]0;mine\x07"
    path.write_text(json.dumps(workflow))
    assert main(["report", "llama-finetune-x7k2", "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\\x1b[2J\\x1b]0;mine\\x07" in text


def test_the_page_can_be_printed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "llama-finetune-x7k2", "-o", "html", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.startswith("<!")


def test_it_can_be_printed_as_a_trace_below_the_parent_of_the_environment(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert main(["report", "llama-finetune-x7k2", "-o", "otlp", "--runs", str(runs)]) == 0
    (resource,) = json.loads(capsys.readouterr().out)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    assert {span["traceId"] for span in scope["spans"]} == {"0af7651916cd43dd8448eb211c80319c"}
    assert scope["spans"][0]["parentSpanId"] == "b7ad6b7169203331"


def test_a_job_alone_is_a_trace_of_one_span_with_its_rounds(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job,) = {path.name for path in (runs / "store" / "jobs").iterdir()}
    assert main(["report", f"{runs}/store/jobs/{job}", "-o", "otlp"]) == 0
    (resource,) = json.loads(capsys.readouterr().out)["resourceSpans"]
    root, span = resource["scopeSpans"][0]["spans"]
    assert span["parentSpanId"] == root["spanId"]
    assert [event["name"] for event in span["events"]].count("round") == 3


def test_an_unknown_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nothing", "--runs", str(tmp_path)]) == 2
    assert "no such run" in capsys.readouterr().err


def test_a_store_alone_is_enough(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = runs / "store"
    (job,) = {path.name for path in (store / "jobs").iterdir()}
    for place in (f"{store}/jobs/{job}", f"{store}/runs/llama-finetune-x7k2"):
        summary_path = store / "runs" / "llama-finetune-x7k2" / "steps" / "train.json"
        summary_path.write_text(json.dumps({**json.loads(summary_path.read_text()), "settings": {"job": job}}))
        assert main(["report", place, "-o", "json"]) == 0
        (job_facts,) = json.loads(capsys.readouterr().out)["jobs"]
        assert job_facts["iteration"] == 200
        assert sum(entry["share"] for entry in job_facts["ledger"]) == pytest.approx(1.0)


def test_a_place_of_a_store_that_has_nothing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", f"{tmp_path}/runs/nothing"]) == 2
    assert "the store has no such run or job" in capsys.readouterr().err


def test_telemetry_that_is_packed_while_it_is_read_is_passed_over(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = runs / "store"
    (job,) = {path.name for path in (store / "jobs").iterdir()}
    packed_key = f"jobs/{job}/telemetry/000001-000002.jsonl"
    open_store(str(store)).put(packed_key, b"{}\n")
    get = DirectoryStore.get

    def get_after_packing(self: DirectoryStore, key: str, *part: int) -> bytes:
        if key == packed_key:
            self.delete(key)
        return get(self, key, *part)

    monkeypatch.setattr(DirectoryStore, "get", get_after_packing)
    assert main(["report", f"{store}/jobs/{job}", "-o", "json"]) == 0
    (job_facts,) = json.loads(capsys.readouterr().out)["jobs"]
    assert job_facts["iteration"] == 200
