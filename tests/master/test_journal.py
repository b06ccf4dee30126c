"""The journal: one sequence, one master."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import DesiredChanged
from everstep.runtime.journal import segments, snapshots
from everstep.runtime.journal.journal import (
    Fenced,
    Journal,
    JournalError,
    ReplayCost,
    claim,
    find_master,
    read_journal,
    read_state,
)
from everstep.runtime.journal.segments import Segment
from everstep.runtime.master.journaled_brain import Clock
from everstep.runtime.store import DirectoryStore, Entry, NoSuchKey, StoreError
from tests.master.shell import TroubledStore


def test_the_newest_claim_tells_where_the_master_is(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    assert find_master(store, "j") is None
    claim(store, "j", "a:1", 1.0)
    claim(store, "j", "b:2", 2.0)
    assert find_master(store, "j") == (2, "b:2")


def test_a_zombie_is_fenced_by_its_next_write(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    zombie, _ = claim(store, "j", "a:1", 1.0)
    claim(store, "j", "b:2", 2.0)
    with pytest.raises(Fenced):
        zombie.write(zombie.draft([DesiredChanged(time=3.0, role="worker", nodes=1)]))
    assert fold(read_journal(store, "j")).sizes == {}


def test_of_eight_that_claim_at_once_the_epochs_are_all_different(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))

    def attempt(number: int) -> Journal | None:
        try:
            return claim(store, "j", f"a:{number}", 1.0)[0]
        except Fenced:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [journal for journal in pool.map(attempt, range(8)) if journal]
    assert won
    assert sorted(journal.epoch for journal in won) == list(range(1, len(won) + 1))
    still = 0
    for journal in won:
        try:
            journal.write(journal.draft([DesiredChanged(time=2.0, role="worker", nodes=1)]))
            still += 1
        except Fenced:
            continue
    assert still == 1, "only the newest may write"


def test_all_segments_after_a_snapshot_are_read_at_once(tmp_path: Path) -> None:
    """A store that takes a second for each request must not cost a takeover, or `everstep status`, half a minute."""
    journal, _ = claim(DirectoryStore(tmp_path), "j", "a:1", 1.0)
    for nodes in range(1, snapshots.MAX_SEGMENTS):
        journal.write(journal.draft([DesiredChanged(time=2.0, role="worker", nodes=nodes)]))
    everyone = threading.Barrier(snapshots.MAX_SEGMENTS)

    class Slow(DirectoryStore):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if "/journal/" in key:
                everyone.wait(timeout=60)
            return super().get(key, start, length)

    assert read_state(Slow(tmp_path), "j").sizes == {"worker": snapshots.MAX_SEGMENTS - 1}


@pytest.mark.parametrize("stale", [1, 2, 5])
@pytest.mark.parametrize("records", [0, 3])
def test_a_list_that_lags_behind_neither_forks_the_journal_nor_hides_a_record(
    tmp_path: Path, stale: int, records: int
) -> None:
    class Lagging(DirectoryStore):
        left = stale

        def list(self, prefix: str) -> Iterator[Entry]:
            entries = [*super().list(prefix)]
            self.left -= 1
            return iter(entries if self.left < 0 else entries[:-1])

    real, lagging = DirectoryStore(tmp_path), Lagging(tmp_path)
    first, _ = claim(real, "j", "a:1", 1.0)
    for nodes in range(records):
        first.write(first.draft([DesiredChanged(time=2.0, role="worker", nodes=nodes)]))
    claimed = None
    while claimed is None:
        with suppress(Fenced):  # It took the segment that it did not see for a rival's: the step's retry tries again.
            claimed, state = claim(lagging, "j", "b:2", 3.0)
    assert claimed.epoch == 2
    assert state == fold(read_journal(real, "j"))
    assert lagging.left < stale, "the fault must have fired"
    with pytest.raises(Fenced):
        first.write(first.draft([DesiredChanged(time=4.0, role="worker", nodes=9)]))


def test_an_ambiguous_success_is_known_by_its_nonce(tmp_path: Path) -> None:
    class Forgetful(DirectoryStore):
        def create(self, key: str, data: bytes) -> bool:
            super().create(key, data)
            return False

    journal, _ = claim(Forgetful(str(tmp_path)), "j", "a:1", 1.0)
    journal.write(journal.draft([DesiredChanged(time=2.0, role="worker", nodes=1)]))
    assert fold(read_journal(DirectoryStore(str(tmp_path)), "j")).sizes == {"worker": 1}


def test_time_in_the_journal_never_runs_back_whatever_the_hosts_clocks_say(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    ahead = time.time() + 7200
    claim(store, "j", "a:1", ahead)
    _, state = claim(store, "j", "b:2", time.time())
    assert [record.time for record in read_journal(store, "j")] == [ahead, ahead]
    assert Clock(state.time)() >= ahead


def test_numbers_of_more_digits_come_later(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    journal = Journal(store, "j", Segment(999_997, 1, "a:1", "nonce"), ReplayCost(0, 0))
    for at in range(4):
        journal.write(journal.draft([DesiredChanged(time=float(at), role="worker", nodes=at)]))
    assert [body.number for body in segments.read(store, "j", 999_997)] == [999_998, 999_999, 1_000_000, 1_000_001]
    assert find_master(store, "j") == (1, "a:1")


def test_a_segment_of_a_newer_everstep_is_refused_by_its_version(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    claim(store, "j", "a:1", 1.0)
    newer = store.get("jobs/j/journal/000001").replace(b'"v":1', b'"v":99', 1)
    store.create("jobs/j/journal/000002", newer)
    with pytest.raises(JournalError, match="000002 has version 99"):
        claim(store, "j", "b:2", 2.0)


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    claim(store, "j", "a:1", 1.0)
    store.create(
        "jobs/j/journal/000002", store.get("jobs/j/journal/000001").splitlines()[0] + b'\n{"kind": "Nonsense"}\n'
    )
    with pytest.raises(JournalError, match="000002 line 2"):
        list(read_journal(store, "j"))


class Forgetful(TroubledStore):
    """Has a segment that nobody can make or read, and perhaps not even see."""

    asked = 0
    shown = True

    def list(self, prefix: str) -> Iterator[Entry]:
        return (entry for entry in super().list(prefix) if self.shown or entry.key != segments.key("j", 2))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == segments.key("j", 2):
            self.asked += 1
            raise NoSuchKey(key)
        return super().get(key, start, length)


@pytest.mark.parametrize(("how", "request_count"), [("find", 2), ("claim", 2), ("write", 1)])
def test_a_segment_that_is_there_and_cannot_be_read_is_told_in_one_line(how: str, request_count: int) -> None:
    """Once it may have been archived meanwhile; a second time it has not."""
    store = Forgetful()
    journal, _ = claim(store, "j", "a:1", 1.0)
    store.objects[segments.key("j", 2)], store.shown = b"", how == "find"
    calls: dict[str, Callable[[], object]] = {
        "find": lambda: find_master(store, "j"),
        "claim": lambda: claim(store, "j", "b:2", 2.0),
        "write": lambda: journal.write(journal.draft([])),
    }
    with pytest.raises(StoreError, match=r"journal/000002 exists and cannot be read; is the store consistent\?$"):
        calls[how]()
    assert store.asked == request_count
