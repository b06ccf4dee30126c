"""Snapshots shorten the replay and change nothing else."""

import asyncio
from pathlib import Path

import pytest

from everstep.runtime.job.fold import fold
from everstep.runtime.job.records import DesiredChanged
from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec
from everstep.runtime.job.state import State
from everstep.runtime.journal import snapshots
from everstep.runtime.journal.journal import claim
from everstep.runtime.master import read_journal
from everstep.runtime.store import DirectoryStore
from tests.master.shell import Shell, Trouble, TroubledStore, in_virtual_time

SPEC = JobSpec("j", {"worker": RoleSpec(2, 1)}, Patience(silence_s=1e6, join_timeout_s=1e6, no_progress=0), hosts="")
NODES = ["worker-0-0", "worker-1-0"]


class CountingStore(TroubledStore):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.read.append(key)
        return super().get(key, start, length)


async def _rounds(shell: Shell, number: int) -> None:
    for round_ in range(number):
        await asyncio.gather(*(shell.join(node, round_) for node in NODES))


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot after a handful of records."""
    monkeypatch.setattr(snapshots, "MAX_RECORDS", 5)
    monkeypatch.setattr(snapshots, "MAX_RECORDS_PER_NODE", 1)


def _play(store: TroubledStore, rounds: int) -> State:
    """The last durable state of a master that lived so many rounds."""
    shell = Shell(SPEC, store)

    async def story() -> State:
        await shell.open()
        await _rounds(shell, rounds)
        while shell.brain.state is not shell.brain.core.state:
            await shell.brain.wait_until_durable()
        await shell.close()
        return shell.brain.state

    return in_virtual_time(store, story)


@pytest.mark.usefixtures("frequent_snapshots")
def test_a_replay_begins_at_the_newest_snapshot_and_leads_to_the_same_state() -> None:
    store = CountingStore()
    state = _play(store, 8)
    snapshot_keys = sorted(key for key in store.objects if "/snapshots/" in key)
    assert len(snapshot_keys) == snapshots.KEPT_SNAPSHOTS
    store.read.clear()
    journal, claimed = claim(store, "j", "b:2", 0.0)
    assert fold(list(read_journal(store, "j"))) == claimed
    assert claimed.nodes == state.nodes
    first = store.read[0]
    assert first == snapshot_keys[-1]
    number = int(first.rsplit("/", 1)[1])
    segments = [key for key in store.read if "/journal/" in key]
    assert min(int(key.rsplit("/", 1)[1]) for key in segments[: journal.replayed.segments]) == number + 1
    assert journal.replayed.records <= 2 * 5


@pytest.mark.usefixtures("frequent_snapshots")
@pytest.mark.parametrize("length", [0, 1, 7, 100, -1])
def test_a_damaged_snapshot_is_passed_over(length: int) -> None:
    store = TroubledStore()
    state = _play(store, 8)
    for key in [key for key in store.objects if "/snapshots/" in key]:
        store.objects[key] = store.objects[key][:length]
    _, claimed = claim(store, "j", "b:2", 0.0)
    assert (claimed.nodes, claimed.round) == (state.nodes, state.round)


@pytest.mark.usefixtures("frequent_snapshots")
def test_a_snapshot_of_another_schema_is_passed_over() -> None:
    store = TroubledStore()
    state = _play(store, 8)
    newest = max(key for key in store.objects if "/snapshots/" in key)
    store.objects[newest] = b'{"schema": 999, "nodes": "of another kind"}'
    _, claimed = claim(store, "j", "b:2", 0.0)
    assert (claimed.nodes, claimed.round) == (state.nodes, state.round)


@pytest.mark.usefixtures("frequent_snapshots")
def test_a_store_that_takes_no_snapshots_does_not_disturb_the_job() -> None:
    store = TroubledStore(lambda key: Trouble.REFUSED if "/snapshots/" in key else Trouble.NONE)
    state = _play(store, 8)
    assert Trouble.REFUSED in store.suffered, "the fault must have fired"
    assert state.round is not None
    assert state.round.number == 8


def test_a_replaced_masters_late_snapshot_is_harmless(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    zombie, stale = claim(store, "j", "a:1", 1.0)
    journal, _ = claim(store, "j", "b:2", 2.0)
    journal.write(journal.draft([DesiredChanged(time=3.0, role="worker", nodes=1)]))
    snapshots.write(store, "j", 1, stale)
    _, claimed = claim(store, "j", "c:3", 4.0)
    assert (claimed.epoch, claimed.sizes) == (3, {"worker": 1})
    assert zombie.epoch == 1


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in range(3):
        claim(store, "j", f"a:{number}", float(number))
    store.delete("jobs/j/journal/000002")
    with pytest.raises(RuntimeError, match=r"000002 is missing, .*000003 is there"):
        claim(store, "j", "a:3", 3.0)


def test_the_newest_snapshots_stay(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in range(1, 6):
        snapshots.write(store, "j", number, State(time=float(number)))
    assert snapshots.newest(store, "j") == (5, State(time=5.0))
    assert [entry.key for entry in store.list("jobs/j/snapshots/")] == [
        "jobs/j/snapshots/000004", "jobs/j/snapshots/000005",
    ]  # fmt: skip
