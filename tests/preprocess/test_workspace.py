"""Where shards grow: they outlive what may pass, and are gone after everything else."""

from pathlib import Path

import pytest

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import StoreError, Unavailable, open_store
from everstep.runtime.text import FileVersion
from everstep.steps.entry import StepError
from everstep.steps.preprocess.inputs import from_files
from everstep.steps.preprocess.workspace import shelf, workspace
from tests.minio import MinIO

PASSING = [Unavailable("no answer"), StepError("Spark's job failed", ExitCode.TRY_AGAIN), KeyboardInterrupt()]
FINAL = [StoreError("the store is full"), StepError("no text"), OSError("no space")]


@pytest.mark.parametrize(("error", "is_passing"), [(e, True) for e in PASSING] + [(e, False) for e in FINAL])
def test_finished_shards_outlive_what_may_pass(
    tmp_path: Path, s3: MinIO, error: BaseException, is_passing: bool
) -> None:
    store = open_store(s3.new_prefix())
    store.put("shard.done", b"")
    work = tmp_path / "work"
    work.mkdir()
    (work / "shard.done").touch()
    with pytest.raises(type(error)), workspace(work) as folder, shelf(folder, store.uri):
        raise error
    assert (work / "shard.done").exists() == is_passing
    assert any(store.list("")) == is_passing


def test_files_that_a_store_does_not_list_at_the_moment_may_be_there_at_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_answer(name: str) -> FileVersion:
        raise Unavailable("no answer")

    monkeypatch.setattr("everstep.runtime.text.find_files", lambda *_: ["s3://bucket/a.jsonl"])
    monkeypatch.setattr("everstep.runtime.text.file_version", no_answer)
    with pytest.raises(StepError, match="no answer") as raised:
        from_files("s3://bucket/a.jsonl", "document", 0)
    assert raised.value.code == ExitCode.TRY_AGAIN
