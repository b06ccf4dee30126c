"""The whole main job from `--corpus s3://...` to `--store s3://...`: it needs no shared folder and writes no secret."""

import json
from pathlib import Path

import pytest

from everstep.runtime.store import open_store
from tests.harness import ROOT, Pipeline
from tests.minio import MinIO

SOURCES = sorted((ROOT / "runtime" / "workflow").rglob("*.py"))


@pytest.fixture
def corpus(s3: MinIO) -> str:
    """Some hundred texts of a few kilobytes in a bucket: this project's own sources."""
    store = open_store(s3.new_prefix())
    texts = [path.read_text() for path in SOURCES]
    for number in range(2):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[number::2])
        store.put(f"texts/{number}.jsonl", lines.encode())
    return f"{store.uri}/texts"


@pytest.mark.long
def test_the_main_job_runs_on_s3_survives_a_kill_and_writes_no_secret(
    s3: MinIO, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, marks = s3.new_prefix(), tmp_path / "faults"
    marks.mkdir()
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EVERSTEP_FAULT", "checkpoint.after_commit,iteration=3,node=worker-1-0=kill")
    monkeypatch.setenv("EVERSTEP_FAULT_DIR", str(marks))
    run = Pipeline(
        tmp_path / "runs/r",
        uri,
        name="r",
        flags=("--corpus", corpus, "--iterations", "6", "--min-nodes", "2", "--sequence-length", "16"),
    )
    try:
        run.start()
        assert run.finish() == 0, run.last_words()
    finally:
        run.kill_all()
    assert any(marks.iterdir()), "the fault did not fire"
    log_text = run.log.read_text()
    model = next(line.removeprefix("model: ") for line in log_text.splitlines() if line.startswith("model: "))
    assert model.startswith(f"{uri}/models/")
    assert (run.folder / "report.html").is_file()
    store = open_store(uri)
    (manifest,) = [entry.key for entry in store.list("corpora/") if entry.key.endswith("/corpus.json")]
    meta = json.loads(store.get(manifest))
    assert meta["documents"] + meta["validation_documents"] == len(SOURCES)
    keys = [entry.key for entry in store.list("")]
    for part in ("corpora/", "datasets/", "/journal/", "/checkpoints/", "models/", "runs/r/steps/report.json"):
        assert any(part in key for key in keys), f"no {part} in {keys}"
    assert store.get(f"{model.removeprefix(uri + '/')}/model.safetensors", 0, 8)
    secret = s3.secret_key.encode()
    assert not [key for key in keys if secret in store.get(key)]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "faults", "runs"]


def test_a_store_that_cannot_be_entered_is_one_line_and_nothing_is_written(
    s3: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-key")
    run = Pipeline(tmp_path / "runs/r", s3.new_prefix(), name="r")
    run.start()
    assert run.finish() == 2
    log_text = run.log.read_text()
    assert log_text.count("\n") == 1, log_text
    assert "with these credentials" in log_text
    assert not run.folder.exists()
