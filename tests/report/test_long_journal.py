"""A journal of which most is archived, or something is missing, is told as a whole one."""

from pathlib import Path

import msgspec
import pytest

from everstep.runtime.job.records import Committed, Record, ShardPersisted
from everstep.runtime.journal import segments
from everstep.runtime.journal.journal import claim, read_journal
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.report import WorkflowFacts, read_run
from everstep.runtime.report.history import history
from everstep.runtime.store import DirectoryStore

UID = "u"
JOB = f"{UID}-train"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """A job of 40 checkpoints in blocks of 4 segments."""
    monkeypatch.setattr(segments, "BLOCK", 4)
    store = DirectoryStore(tmp_path)
    journal, _ = claim(store, JOB, "a:1", 1.0)
    for at in range(1, 41):
        holding = Holding(1, at, key=f"k/{at}")
        records: list[Record] = [
            ShardPersisted(time=at, holding=holding),
            Committed(time=at, round=1, iteration=at, key="m"),
        ]
        journal.write(journal.draft(records))
        segments.archive(store, JOB, at)
    return store


def test_what_is_archived_is_told(store: DirectoryStore) -> None:
    assert len(segments.listed_numbers(store, JOB)) < 10, "most must be archived"
    run = read_run(store, "run", facts=WorkflowFacts(uid=UID))
    training = run.jobs["train"]
    assert training == history(read_journal(store, JOB), [])
    assert training.commits == tuple((float(at), 1, at) for at in range(1, 41))
    assert not [note for note in run.notes if "journal" in note or "archive" in note]


def test_what_is_missing_or_no_record_is_noted_and_the_rest_told(store: DirectoryStore) -> None:
    store.delete(f"jobs/{JOB}/archive/000009.jsonl.gz")
    newest = segments.key(JOB, 41)
    torn = store.get(newest) + b'{"kind":"Later"}\n{"kind":"Com\n' + b"x\n" * 100
    store.put(newest, torn)
    run = read_run(store, "run", facts=WorkflowFacts(uid=UID))
    assert [commit.iteration for commit in run.jobs["train"].commits] == [*range(1, 8), *range(12, 41)]
    notes = "\n".join(run.notes)
    assert "000009 is missing" in notes
    assert "000041, line 4: not a record this version knows (Later)" in notes
    assert "82 more lines" in notes


def test_segments_headers_are_no_notes(store: DirectoryStore) -> None:
    assert msgspec.json.decode(store.get(segments.key(JOB, 41)).splitlines()[0])["kind"] == "Segment"
    assert "line 1" not in " ".join(read_run(store, "run", facts=WorkflowFacts(uid=UID)).notes)
