"""Checkpoints without an agent: ranks that put their shards, die anywhere, and are started again."""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.checkpoint.errors import ApartError, SegmentError, UnreachableError
from everstep.runtime.checkpoint.shard.reshard import (
    assemble_state,
    open_shards,
    read_value,
    read_whole,
    verify_shards,
)
from everstep.runtime.checkpoint.state.flatten import FlatState, flatten
from everstep.runtime.checkpoint.stored.read_committed import sources_in
from everstep.runtime.checkpoint.stored.verify import find_problems, list_checkpoints
from everstep.runtime.checkpoint.worker.own_slots import ABANDONED_S, OwnSlots, remove_abandoned
from everstep.runtime.checkpoint.worker.standalone import SHARDED_INTERVAL, Agree, Collectives, StandaloneKeeper
from everstep.runtime.store import DirectoryStore, Store, StoreError
from tests.examples import examples

JOB = "jobs/j/checkpoints/"


def part(iteration: int, rank: int, run: int) -> FlatState:
    """What a rank holds: which run of the script has computed it can be told from the bytes."""
    return flatten({f"rank{rank}": torch.full((300,), float(100 * run + iteration)), "run": run})


class KilledHere(Exception):  # noqa: N818
    """The process was killed here."""


class Mortal(DirectoryStore):
    """A process's view of the store; the process ends before its n-th call, and nothing of it happens any more."""

    def __init__(self, directory: Path, calls: int) -> None:
        super().__init__(directory)
        self.calls = calls

    def _live(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise KilledHere

    def put(self, key: str, source: Any) -> None:
        self._live()
        super().put(key, source)

    def create(self, key: str, data: bytes) -> bool:
        self._live()
        return super().create(key, data)

    def list(self, prefix: str) -> Any:
        self._live()
        return super().list(prefix)


def start_processes(folder: Path, calls: list[int]) -> list[StandaloneKeeper]:
    """The ranks of one run; rank 0's numbers hold for all, as a collective makes it."""
    places: list[tuple[int, int]] = []

    def agree(rank: int) -> Agree:
        def numbers(look: Callable[[], tuple[int, int]], _: torch.device) -> tuple[int, int]:
            if rank == 0:
                places[:] = [look()]
            return places[0]

        return numbers

    ranks = [
        StandaloneKeeper(Mortal(folder, 10**6), "j", collectives=Collectives(agree(rank), lambda mine, _: mine))
        for rank in range(len(calls))
    ]
    for rank, alone in enumerate(ranks):
        alone.join(rank, len(ranks))
    for alone, count in zip(ranks, calls, strict=True):
        alone.store.calls = count  # pyright: ignore[reportAttributeAccessIssue]
    return ranks


def check(folder: Path) -> dict[tuple[int, int], float]:
    """Every committed checkpoint is whole and of one run; what each holds."""
    store, value_at = DirectoryStore(folder), {}
    for checkpoint in list_checkpoints(store, JOB):
        if checkpoint.commit is not None:
            assert list(find_problems(store, checkpoint.folder, checkpoint.commit)) == []
            shards = open_shards(*sources_in(store, checkpoint.folder, checkpoint.commit))
            states = [read_value(shard, shard.saved["state"]) for shard in shards]
            tensors = [tensor for state in states for name, tensor in state.items() if name != "run"]
            values = {float(value) for tensor in tensors for value in tensor.unique()}
            assert values == {100.0 * states[0]["run"] + checkpoint.iteration}
            if len(shards) > 1:
                with pytest.raises(ApartError, match="rank1: not every rank has it"):
                    assemble_state(shards)
            value_at[checkpoint.round, checkpoint.iteration] = values.pop()
    return value_at


def test_a_sharded_checkpoint_is_there_when_every_rank_has_put_its_part(tmp_path: Path) -> None:
    ranks = start_processes(tmp_path, [10**6] * 2)
    ranks[0].save(1, part(1, 0, 0), persist=True)
    ranks[0]._wait()
    assert check(tmp_path) == {}
    ranks[1].save(1, part(1, 1, 0), persist=True)
    assert [alone.flush(1) for alone in ranks] == [f"{JOB}000001-000000001/manifest.json"] * 2
    assert check(tmp_path) == {(1, 1): 1.0}


def test_ranks_put_the_same_iterations_without_a_word(tmp_path: Path) -> None:
    ranks = start_processes(tmp_path, [10**6] * 3)
    for iteration in range(SHARDED_INTERVAL - 1, SHARDED_INTERVAL + 2):
        for rank, alone in enumerate(ranks):
            alone.save(iteration, part(iteration, rank, 0))
    for alone in ranks:
        alone.flush(SHARDED_INTERVAL)
    assert check(tmp_path) == {(1, SHARDED_INTERVAL): float(SHARDED_INTERVAL)}


def test_what_a_killed_run_has_begun_is_never_completed_by_the_next(tmp_path: Path) -> None:
    start_processes(tmp_path, [10**6] * 2)[1].save(1, part(1, 1, 1), persist=True)
    again = start_processes(tmp_path, [10**6] * 2)
    again[0].save(1, part(1, 0, 2), persist=True)
    again[0]._wait()
    assert check(tmp_path) == {}
    again[1].save(1, part(1, 1, 2), persist=True)
    again[1].flush(1)
    assert check(tmp_path) == {(2, 1): 201.0}


def test_a_store_that_refuses_is_told_at_the_next_save_and_the_same_iteration_may_be_saved_again(
    tmp_path: Path,
) -> None:
    class Full(DirectoryStore):
        full = True

        def put(self, key: str, source: Any) -> None:
            if self.full:
                raise StoreError(f"{key}: cannot write: No space left on device")
            super().put(key, source)

    store = Full(tmp_path)
    alone = StandaloneKeeper(store, "j")
    alone.save(1, part(1, 0, 0), persist=True)
    with pytest.raises(StoreError, match="No space left"):
        alone.save(2, part(2, 0, 0), persist=True)
    with pytest.raises(StoreError, match="iteration 9 was not saved"):
        alone.flush(9)
    store.full = False
    alone.save(1, part(1, 0, 0), persist=True)
    assert alone.flush(1) == f"{JOB}000001-000000001/manifest.json"


@given(st.lists(st.lists(st.integers(0, 25), min_size=1, max_size=3), min_size=1, max_size=3))
@settings(max_examples=examples(25))
def test_wherever_ranks_are_killed_no_checkpoint_is_empty_mixed_or_torn(runs: list[list[int]]) -> None:
    """Each run has so many ranks, which die after so many calls of the store; the next run has another number."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder, newest = Path(name), (0, 0)
        for run, calls in enumerate(runs):
            ranks = start_processes(folder, calls)
            sources = ranks[0].restore(lambda sources: sources) if calls[0] > 2 else None
            if sources is not None:
                assert {(holding.round, holding.iteration) for holding in sources.holdings} == {newest}
            dead: set[int] = set()
            for iteration in range(1, 4):
                for rank, alone in enumerate(ranks):
                    try:
                        if rank not in dead:
                            alone.save(iteration, part(iteration, rank, run), persist=True)
                            alone._wait()
                    except KilledHere:
                        dead.add(rank)
                if dead:
                    break  # A collective of the next iteration would not end.
            checkpoints = check(folder)
            if not dead:
                assert max(checkpoints) == (ranks[0]._round, 3)
            assert max(checkpoints, default=(0, 0)) >= newest
            newest = max(checkpoints, default=(0, 0))


def test_a_damaged_newest_checkpoint_is_passed_over_by_every_rank_and_named(tmp_path: Path, capsys: Any) -> None:
    store = DirectoryStore(tmp_path)
    for iteration in (1, 2, 3):
        alone = StandaloneKeeper(store, "j")
        alone.save(iteration, part(iteration, 0, 0), persist=True)
        alone.flush(iteration)
    folders = [checkpoint.folder for checkpoint in list_checkpoints(store, JOB)]
    os.truncate(tmp_path / folders[2] / "rank-00000.safetensors", 5000)
    shard = tmp_path / folders[1] / "rank-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
    assert StandaloneKeeper(store, "j").restore(lambda sources: read_whole(*sources)[1]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" is skipped: ")[0] for line in lines] == [f"everstep: {f}" for f in folders[:0:-1]]
    (tmp_path / folders[0] / "rank-00000.safetensors").unlink()
    assert StandaloneKeeper(store, "j").restore(lambda sources: read_whole(*sources)[1]) is None
    manifest = tmp_path / folders[2] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(UnreachableError, match="version 2, this Everstep reads up to 1"):
        StandaloneKeeper(store, "j").restore(lambda sources: read_whole(*sources)[1])


def test_a_checkpoint_is_read_into_memory_of_the_host_whatever_the_default_device_is(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    alone = StandaloneKeeper(store, "j")
    alone.save(4, part(4, 0, 0), persist=True)
    alone.flush(4)
    with torch.device("meta"):
        state, _ = StandaloneKeeper(store, "j").restore(lambda sources: read_whole(*sources)) or ({}, 0)
        check(tmp_path)  # Shard by shard.
    assert state["rank0"].tolist() == [4.0] * 300


def test_a_rank_that_fails_takes_the_others_to_an_older_one(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for iteration in (1, 2):
        alone = StandaloneKeeper(store, "j")
        alone.save(iteration, part(iteration, 0, 0), persist=True)
        alone.flush(iteration)
    answers = iter([1.0, 0.0])
    alone = StandaloneKeeper(store, "j", collectives=Collectives(largest=lambda *_: next(answers)))
    assert alone.restore(lambda sources: sources.holdings[0].iteration) == 1


def _save_run(store: Store, iterations: Iterable[int], keep_last: int = 3) -> StandaloneKeeper:
    """A run that begins from what is there, and saves these."""
    alone = StandaloneKeeper(store, "j", keep_last=keep_last)
    alone.restore(lambda sources: read_whole(*sources)[1])
    for iteration in iterations:
        alone.save(iteration, part(iteration, 0, 0), persist=True)
        alone.flush(iteration)
    return alone


def _there(store: Store) -> list[tuple[int, int]]:
    return [(checkpoint.round, checkpoint.iteration) for checkpoint in list_checkpoints(store, JOB)]


def test_the_newest_checkpoints_of_all_runs_stay_and_what_this_one_began_from(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    _save_run(store, range(1, 6))
    assert _there(store) == [(1, 3), (1, 4), (1, 5)]
    _save_run(store, [6])
    assert _there(store) == [(1, 4), (1, 5), (2, 6)]
    _save_run(store, range(7, 12))
    assert _there(store) == [(2, 6), (3, 9), (3, 10), (3, 11)]
    _save_run(store, [12])
    assert _there(store) == [(3, 10), (3, 11), (4, 12)]
    _save_run(store, range(13, 19), keep_last=0)
    assert len(_there(store)) == 9, "0: all of them"


def test_a_store_that_deletes_nothing_is_told_and_the_training_goes_on(tmp_path: Path, capsys: Any) -> None:
    class Stubborn(DirectoryStore):
        def delete(self, key: str) -> None:
            raise StoreError("refuses to DELETE")

    _save_run(Stubborn(tmp_path), range(1, 6))
    assert len(_there(DirectoryStore(tmp_path))) == 5
    assert "old checkpoints stay until the next one: refuses to DELETE" in capsys.readouterr().err
    _save_run(DirectoryStore(tmp_path), [6])
    assert _there(DirectoryStore(tmp_path)) == [(1, 4), (1, 5), (2, 6)]


def test_a_store_that_lists_checkpoints_and_gives_none_is_no_reason_to_begin_from_nothing(tmp_path: Path) -> None:
    class Mute(DirectoryStore):
        def read_into(self, key: str, start: int, buffer: memoryview) -> None:
            raise StoreError("answers 500")

    _save_run(DirectoryStore(tmp_path), [1, 2])
    with pytest.raises(UnreachableError, match=r"though some may be complete: store .*answers 500"):
        StandaloneKeeper(Mute(tmp_path), "j").restore(lambda sources: read_whole(*sources)[1])


def single(folder: Path, interval: int = 0) -> tuple[StandaloneKeeper, OwnSlots]:
    """A process of a script that no agent started."""
    memory = folder / "memory"
    slots = OwnSlots(memory)
    return StandaloneKeeper(DirectoryStore(folder / "store"), "j", slots=slots, interval=interval), slots


def iteration_of(alone: StandaloneKeeper) -> int | None:
    """What it starts from, with every byte as it was saved."""
    shards = alone.restore(lambda sources: verify_shards(open_shards(*sources)))
    if shards is None:
        return None
    state, iteration = assemble_state(shards)
    assert float(state["rank0"][0]) == float(100 * state["run"] + iteration)
    return iteration


def test_a_killed_process_goes_on_from_its_last_save_and_an_ended_one_leaves_no_memory(tmp_path: Path) -> None:
    first, slots = single(tmp_path)
    for iteration in range(1, 8):
        first.save(iteration, part(iteration, 0, 1))
    slots.close()  # As the kernel does for a killed process.
    assert check(tmp_path / "store") == {}
    second, slots = single(tmp_path)
    assert iteration_of(second) == 7
    second.save(8, part(8, 0, 1))
    second.close()
    assert sorted(check(tmp_path / "store")) == [(2, 8)]
    assert not (tmp_path / "memory").exists()
    assert iteration_of(single(tmp_path)[0]) == 8


def test_a_state_that_was_being_copied_at_the_kill_is_never_restored(tmp_path: Path) -> None:
    first, slots = single(tmp_path)
    for iteration in (1, 2, 3):
        first.save(iteration, part(iteration, 0, 1))
    _, buffer = slots.begin(100, None)
    buffer[:100] = bytes(100)
    slots.close()
    assert iteration_of(single(tmp_path)[0]) == 3


def test_memory_of_a_store_that_was_emptied_is_forgotten(tmp_path: Path) -> None:
    first, slots = single(tmp_path)
    for iteration in range(1, 8):
        first.save(iteration, part(iteration, 0, 1))
    slots.close()
    shutil.rmtree(tmp_path / "store")
    for saved_iteration in (None, 1):
        again, slots = single(tmp_path)
        assert iteration_of(again) == saved_iteration
        again.save(1, part(1, 0, 2))
        slots.close()


def test_two_processes_of_one_job_do_not_share_memory(tmp_path: Path) -> None:
    single(tmp_path)
    with pytest.raises(SegmentError, match="another process of this job uses it"):
        OwnSlots(tmp_path / "memory")


def test_a_single_process_writes_to_the_store_as_often_as_it_is_asked(tmp_path: Path) -> None:
    alone, _ = single(tmp_path, interval=3)
    for iteration in range(1, 8):
        alone.save(iteration, part(iteration, 0, 1))
    alone.flush(6)
    assert sorted(check(tmp_path / "store")) == [(1, 3), (1, 6)]


def test_slots_without_a_save_for_a_week_are_removed_unless_a_process_uses_them(tmp_path: Path) -> None:
    folders = [tmp_path / f"everstep-{name}-alone" for name in ("used", "killed", "fresh")]
    slots = [OwnSlots(folder) for folder in folders]
    for slot in slots[1:]:
        slot.close()
    for folder in folders[:2]:
        os.utime(folder, (0.0, 0.0))
    (tmp_path / "everstep-of-an-agent").touch()
    remove_abandoned(folders[2].stat().st_mtime + ABANDONED_S - 1.0, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "everstep-used-alone", "everstep-fresh-alone", "everstep-of-an-agent"
    }  # fmt: skip
    slots[0].close()
