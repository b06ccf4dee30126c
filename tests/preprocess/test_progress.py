"""What is told while tasks run, and at their end."""

import os
from pathlib import Path

import msgspec
import pytest

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import Unavailable, open_store
from everstep.runtime.text import extents
from everstep.steps.entry import StepError
from everstep.steps.preprocess import Config, progress
from everstep.steps.preprocess.cleaning import UNREADABLE
from everstep.steps.preprocess.job import complete_results, first_read_time, require_all
from everstep.steps.preprocess.plan import shards
from everstep.steps.preprocess.progress import Total, WorkDone, progress_line, read_done, show_progress
from everstep.steps.preprocess.shard import REFUSAL_KEY, ShardRefusal, ShardResult
from everstep.steps.preprocess.workspace import COUNTS
from everstep.steps.progress import ARGO_FILE
from tests.harness import wait_until


def test_a_line_has_rate_and_time_left_by_documents_or_else_by_bytes() -> None:
    now = WorkDone(documents=30, tokens=2_500_000, bytes=8_000_000, stored=100)
    assert progress_line(now, Total(120, 1000), 4.0) == "30 of 120 documents  2.5 M tokens  2.0 MB/s  25 %  12 s left"
    assert progress_line(now, Total(0, 1000), 4.0) == "30 documents  2.5 M tokens  2.0 MB/s  10 %  36 s left"
    assert progress_line(WorkDone(0, 0, 0, 0), Total(0, 0), 1.0) == "0 documents  0.0 M tokens  0.0 MB/s"


def test_tasks_are_summed_and_a_file_that_is_just_being_made_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.progress").write_bytes(COUNTS.pack(1, 2, 3, 4))
    (tmp_path / "b.progress").write_bytes(COUNTS.pack(10, 20, 30, 40))
    (tmp_path / "c.progress").write_bytes(b"")
    assert read_done(str(tmp_path)) == WorkDone(11, 22, 33, 44)


def test_argos_progress_file_says_how_many_kilobytes_of_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.progress").write_bytes(COUNTS.pack(5, 50, 500, 64 << 10))
    monkeypatch.setitem(os.environ, ARGO_FILE, str(tmp_path / "argo"))
    with show_progress(str(tmp_path), Total(0, 256 << 10), every=1):
        wait_until(lambda: (tmp_path / "argo").exists(), "Argo's progress file")
    assert (tmp_path / "argo").read_text() == "64/256"
    assert "5 documents" in capfd.readouterr().err


def test_progress_that_cannot_be_read_for_a_while_is_told_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    questions: list[str] = []

    def answer_second(shelf: str) -> WorkDone:
        questions.append(shelf)
        if len(questions) == 1:
            raise Unavailable("no answer")
        return WorkDone(documents=5, tokens=50, bytes=500, stored=64 << 10)

    monkeypatch.setattr(progress, "read_done", answer_second)
    monkeypatch.setitem(os.environ, ARGO_FILE, str(tmp_path / "argo"))
    with show_progress(str(tmp_path), Total(0, 256 << 10), every=1):
        wait_until(lambda: (tmp_path / "argo").exists(), "Argo's progress file")
    assert "5 documents" in capfd.readouterr().err


def shard_result(*having: int, skipped: int = 0) -> ShardResult:
    return ShardResult("document-00000", (), 9, having, 0, {UNREADABLE: skipped}, (), 0.0)


def test_a_key_that_no_document_has_is_told() -> None:
    config = Config(input="a.jsonl", jsonl_keys="text,title")
    assert len(complete_results(config, [shard_result(3, 0), shard_result(0, 1)])) == 2
    with pytest.raises(StepError, match=r"--jsonl-keys title: no document of --input a\.jsonl has this key"):
        complete_results(config, [shard_result(3, 0), shard_result(2, 0)])


def test_the_first_refused_text_is_told_and_skipped_documents_are_counted(capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(StepError, match=r"^a\.jsonl:3:1: not JSON$"):
        complete_results(
            Config(), [shard_result(1), ShardRefusal("a.jsonl:3:1: not JSON"), ShardRefusal("a.jsonl:9:1: not JSON")]
        )
    complete_results(Config(), [shard_result(1, skipped=2), shard_result(1, skipped=1)])
    assert "3 documents could not be read and were skipped" in capfd.readouterr().err


def test_no_shard_is_missing_without_a_word(tmp_path: Path) -> None:
    """The task that refused its text was lost before it could say so; the others had heard of it and left."""
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" * 30)
    planned, store = shards("document", extents(str(tmp_path / "a.jsonl")), 3), open_store(str(tmp_path / "work"))
    require_all(planned, [shard_result(1), shard_result(1), shard_result(1)], store)
    require_all(planned, [shard_result(1), ShardRefusal("a.jsonl:3:1: not JSON")], store)  # which is told
    with pytest.raises(StepError, match="2 of 3 tasks left no output") as error:
        require_all(planned, [shard_result(1)], store)
    assert error.value.code == ExitCode.TRY_AGAIN
    store.create(REFUSAL_KEY, b"a.jsonl:3:1: not JSON")
    with pytest.raises(StepError, match=r"^a\.jsonl:3:1: not JSON$"):
        require_all(planned, [shard_result(1)], store)


def test_the_clock_starts_with_the_first_byte_that_this_command_has_read() -> None:
    earlier, first, later = (msgspec.structs.replace(shard_result(1), began=began) for began in (5.0, 12.0, 13.0))
    assert first_read_time(10.0, [earlier, later, first]) == 12.0
    assert first_read_time(10.0, [earlier]) == 10.0
    assert first_read_time(10.0, []) == 10.0
