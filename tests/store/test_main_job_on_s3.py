"""The whole main job with `--store s3://...`: nothing of it needs a shared folder, no secret is written anywhere."""

from pathlib import Path

import pytest

from runtime.store import open_store
from tests.harness import ROOT, Pipeline
from tests.minio import MinIO


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Some hundred texts of a few kilobytes: this project's own sources."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, path in enumerate(sorted((ROOT / "runtime").rglob("*.py"))):
        (folder / f"{number:03d}.txt").write_text(path.read_text())
    return folder


def test_the_main_job_runs_on_s3_survives_a_kill_and_writes_no_secret(
    s3: MinIO, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, marks = s3.new_prefix(), tmp_path / "faults"
    marks.mkdir()
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EVERSTEP_FAULT", "checkpoint.after_commit,iteration=3,node=worker-1-0=kill")
    monkeypatch.setenv("EVERSTEP_FAULT_DIR", str(marks))
    run = Pipeline(
        tmp_path / "runs/r", uri, name="r", flags=("--corpus", str(corpus), "--iterations", "6", "--min-nodes", "2")
    )
    try:
        run.start()
        assert run.finish() == 0, run.last_words()
    finally:
        run.kill_all()
    assert any(marks.iterdir()), "the fault did not fire"
    told = run.log.read_text()
    model = next(line.removeprefix("model: ") for line in told.splitlines() if line.startswith("model: "))
    assert model.startswith(f"{uri}/models/")
    assert (run.folder / "report.html").is_file()
    store = open_store(uri)
    keys = [entry.key for entry in store.list("")]
    for part in ("corpora/", "datasets/", "/journal/", "/checkpoints/", "models/", "runs/r/steps/report.json"):
        assert any(part in key for key in keys), f"no {part} in {keys}"
    assert store.get(f"{model.removeprefix(uri + '/')}/model.safetensors", 0, 8)
    secret = s3.secret_key.encode()
    assert not [key for key in keys if secret in store.get(key)]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "faults", "runs", "texts"]


def test_a_store_that_cannot_be_entered_is_one_line_and_nothing_is_written(
    s3: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-key")
    run = Pipeline(tmp_path / "runs/r", s3.new_prefix(), name="r")
    run.start()
    assert run.finish() == 2
    told = run.log.read_text()
    assert told.count("\n") == 1, told
    assert "with these credentials" in told
    assert not run.folder.exists()
