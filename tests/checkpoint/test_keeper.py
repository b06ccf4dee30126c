"""The keeper: tiers of restore, what is persisted, what is left behind."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node import keeper_io
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.keeper import Keeper
from everstep.runtime.checkpoint.shard.digests import check_shard
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit
from everstep.runtime.checkpoint.stored.verify import find_problems, list_checkpoints
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Flaw, Holding, Restore
from everstep.runtime.protocol.worker_link import LinkError, Staged
from everstep.runtime.store import DirectoryStore, StoreError
from tests.fake_agent import PATIENCE_S
from tests.harness import wait_until


def train(node: Any, state: dict[str, Any], iterations: int, round_: int = 1) -> Checkpointer:
    """A worker that stages so many iterations of one state."""
    checkpointer = Checkpointer(state, keeper=node.link(round_))
    node.has_memory()
    for iteration in range(1, iterations + 1):
        state["position"] = iteration
        checkpointer.save(iteration, state)
    return checkpointer


@pytest.fixture
def peer(make_node: Any) -> Any:
    """Another node, which serves its memory."""
    return make_node("worker-1-0")


def test_after_a_workers_death_the_state_comes_from_own_memory(node: Any, make_state: Any, same: Any) -> None:
    node.begin(1)
    saved_state = make_state(2)
    train(node, saved_state, 7)
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    live = make_state(0)
    assert Checkpointer(live, keeper=node.link(2)).load(live) == 7
    assert same(live, saved_state)
    assert node.keeper.wait_for_restore(0).source == "memory"


def test_a_new_node_reads_a_peers_memory(peer: Any, make_node: Any, make_state: Any, same: Any) -> None:
    peer.begin(1)
    saved_state = make_state(2)
    train(peer, saved_state, 3)
    fresh = make_node("worker-0-1")
    fresh.begin(2, Restore(1, 3, peer.keeper.holdings(peer.address)[:1], ""))
    live = make_state(0)
    assert Checkpointer(live, keeper=fresh.link(2)).load(live) == 3
    assert same(live, saved_state)
    assert fresh.keeper.wait_for_restore(0).source == "peer worker-1-0"


def test_a_round_that_starts_from_nothing_says_so(node: Any, make_state: Any) -> None:
    node.begin(1)
    assert Checkpointer(make_state(0), keeper=node.link()).load(make_state(0)) == 0


def test_every_local_rank_reads_the_state_that_the_first_staged(node: Any, make_state: Any, same: Any) -> None:
    node.begin(1)
    saved_state = make_state(2)
    train(node, saved_state, 2)
    node.begin(2, node.newest())
    live = make_state(0)
    second = Checkpointer(live, keeper=node.link(2, local_rank=1), local_rank=1)
    assert second.load(live) == 2
    assert same(live, saved_state)
    second.save(3, live)
    second.beacon(3, "forward")
    assert node.keeper.beacon(1) == (3, "forward")
    assert max(holding.iteration for holding in node.keeper.holdings("")) == 2


def damage(node: Any, iteration: int) -> None:
    """Flip a bit of a held state behind the keeper's back."""
    with node.keeper.open_shard(1, iteration, 0) as shard:
        whole = bytes(shard)
    (path,) = node.shm.iterdir()
    offset = path.read_bytes().index(whole) + len(whole) // 2
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([whole[len(whole) // 2] ^ 4]))


def test_a_bit_flipped_in_own_memory_falls_to_the_peer_and_then_to_the_store(
    peer: Any, make_node: Any, make_state: Any, same: Any, caplog: Any
) -> None:
    node, saved_state = make_node(), make_state(2)
    for each in (peer, node):
        each.begin(1)
        train(each, saved_state, 4)
    key = train(node, saved_state, 4).flush(4)
    holdings_held = [*node.keeper.holdings("127.0.0.1:1"), *peer.keeper.holdings(peer.address), *node.persisted]
    restore = Restore(1, 4, tuple(holding for holding in holdings_held if holding.iteration == 4), "")
    expected = ["peer worker-1-0", f"store {key.replace('manifest.json', 'rank-00000.safetensors')}"]
    for round_, source in enumerate(expected, 2):
        damage(node, 4)
        if round_ == 3:
            damage(peer, 4)
        node.begin(round_, restore)
        live = make_state(0)
        assert Checkpointer(live, keeper=node.link(round_)).load(live) == 4
        assert node.keeper.wait_for_restore(0).source == source
        assert same(live, saved_state)
    assert "own memory: the digest of bytes" in caplog.text
    assert "peer worker-1-0: the digest of bytes" in caplog.text


def test_when_no_source_is_right_each_is_told_the_master_and_the_round_is_waited_out(
    make_node: Any, store: DirectoryStore
) -> None:
    store.put("short", b"x" * 10)
    sources = tuple(
        Holding(1, 5, size=20, digest="0" * 32, key=key, node=node, address="127.0.0.1:9")
        for key, node in (("missing", ""), ("short", ""), ("", "worker-9-0"))
    )
    node = make_node()
    node.begin(2, Restore(1, 5, sources, ""))
    refusals_by_name = {refusal.key or refusal.node: refusal for refusal in node.refused.get(timeout=PATIENCE_S)}
    assert {name: refusal.flaw for name, refusal in refusals_by_name.items()} == {
        "missing": Flaw.DAMAGED, "short": Flaw.DAMAGED, "worker-9-0": Flaw.UNREACHABLE,
    }  # fmt: skip
    assert "missing: no such object" in refusals_by_name["missing"].why
    waiting_load = ThreadPoolExecutor(1).submit(node.keeper.wait_for_restore, 0)
    wait_until(lambda: node.keeper._core._restore._waiting, "that it waits", PATIENCE_S)
    node.begin(3)
    with pytest.raises(KeeperError, match="the round ended"):
        waiting_load.result(PATIENCE_S)


def test_a_torn_stage_is_never_offered(node: Any, make_state: Any) -> None:
    node.begin(1)
    checkpointer = train(node, make_state(1), 3)
    slot = node.keeper.acquire(0, 5)
    node.keeper.worker_died(0)
    offered = {holding.iteration for holding in node.keeper.holdings("")}
    assert offered in ({1, 3}, {2, 3})  # The oldest gives way, unless somebody reads it.
    with pytest.raises(KeyError), node.keeper.open_shard(1, 4, 0):
        pass
    assert node.keeper.acquire(0, 5).slot == slot.slot
    assert checkpointer.stall_s > 0


def test_a_stage_of_a_dead_worker_cannot_be_committed(node: Any, make_state: Any) -> None:
    node.begin(1)
    checkpointer = train(node, make_state(1), 1)
    node.keeper.acquire(0, 2)
    node.keeper.worker_died(0)
    with pytest.raises(KeeperError, match="not what worker 0 was given"):
        node.keeper.commit_stage(0, Staged(0, 2, 10, False))
    assert checkpointer.stall_s > 0


def test_what_is_no_shard_is_refused_when_it_is_staged(node: Any, make_state: Any) -> None:
    node.begin(1)
    train(node, make_state(1), 1)
    slot = node.keeper.acquire(0, 2)
    with pytest.raises(KeeperError, match="iteration 2 of worker 0: not a shard of Everstep"):
        node.keeper.commit_stage(0, Staged(slot.slot, 2, 10, False))
    assert [holding.iteration for holding in node.keeper.holdings("")] == [1]


def test_the_interval_decides_what_is_persisted(make_node: Any, make_state: Any, store: DirectoryStore) -> None:
    node = make_node(interval=2)
    node.begin(1)
    state = make_state(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    for iteration in range(1, 6):
        checkpointer.save(iteration, state)
        wait_until(
            lambda count=iteration // 2: len(node.persisted) == count, "a commit of every second iteration", PATIENCE_S
        )
    keys = [f"jobs/job/checkpoints/000001-{n:09d}/rank-00000.safetensors" for n in (2, 4)]
    assert [entry.key for entry in store.list("jobs/")] == keys


def test_memory_that_was_reserved_before_the_first_round_is_the_workers(node: Any) -> None:
    node.keeper.reserve(100)
    node.begin(1)
    segment = node.keeper.announce(0, 100)
    assert SegmentFile.open(Path(segment.path)).ready_slots == segment.slots
    assert node.keeper.try_acquire(0, 1) is not None


def test_each_iteration_is_wanted_of_a_state_that_all_ranks_have_alone(node: Any) -> None:
    node.begin(1, world_size=2)
    segments = [SegmentFile.open(Path(node.keeper.announce(rank, 100, is_sharded=rank > 0).path)) for rank in (0, 1)]
    assert not any(segment.wants_stage for segment in segments)
    node.keeper.want_stages()
    assert [segment.wants_stage for segment in segments] == [True, False]


def test_a_node_that_does_not_persist_puts_nothing_and_waits_for_nothing(
    make_node: Any, make_state: Any, store: DirectoryStore
) -> None:
    node = make_node(interval=1)
    node.begin(1, persists=False)
    state = make_state(1)
    checkpointer = train(node, state, 3)
    assert checkpointer.flush(3) == ""
    assert list(store.list("")) == []


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)], ids=["the one that persists", "one that leaves"])
def test_what_nodes_put_of_one_iteration_differs_by_node_and_the_first_reported_stays_whole(
    make_node: Any, make_state: Any, store: DirectoryStore, order: tuple[int, ...]
) -> None:
    holdings: list[Holding] = []
    for number in order:
        node = make_node(f"worker-{number}-0")
        node.begin(1, persists=number == 0)
        train(node, {**make_state(1), "seed": min(number, 1)}, 3)  # Two nodes have the same bytes.
        node.keeper.persist_newest()
        wait_until(lambda node=node: node.persisted, "its report", PATIENCE_S)
        holdings += node.persisted
    folder = "jobs/job/checkpoints/000001-000000003"
    store.create(f"{folder}/manifest.json", encode_manifest(make_commit("job", 1, holdings[:1])))
    for holding in holdings:
        check_shard(memoryview(store.get(holding.key)), holding.digest)
    (entry,) = list_checkpoints(store)
    assert entry.commit is not None
    assert list(find_problems(store, folder, entry.commit)) == []
    assert (entry.shards, entry.wrong) == (1, "")
    keys = {holding.key for holding in holdings}
    assert len(keys) == 2
    assert f"{folder}/rank-00000.safetensors" in keys
    assert {*entry.keys} == {*keys, f"{folder}/manifest.json"}, "what lost is deleted with the checkpoint"


def test_the_newest_state_of_a_dead_worker_is_persisted_unasked(node: Any, make_state: Any) -> None:
    node.begin(1)
    train(node, make_state(1), 3)
    node.keeper.worker_died(0)
    wait_until(lambda: node.persisted, "a commit", PATIENCE_S)
    assert [holding.iteration for holding in node.persisted] == [3]


def test_with_an_overhead_the_interval_follows_from_the_first_copy_on(make_node: Any, make_state: Any) -> None:
    node = make_node(interval=50, overhead=0.01)
    node.begin(1)
    assert node.keeper.interval() == (16, "every 16 iterations, until one was measured")
    state = make_state(1)
    checkpointer = train(node, state, 1)
    for iteration in range(2, 17):
        checkpointer.save(iteration, state)
    wait_until(
        lambda: node.persisted and "a failure comes every" in node.keeper.interval()[1],
        "a commit, and the rate of failures",
        PATIENCE_S,
    )
    assert node.persisted[0].iteration == 16
    assert node.keeper.interval()[0].bit_count() == 1


class GatedStore(DirectoryStore):
    """Takes an object when it is told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked, self.gate = threading.Semaphore(0), threading.Semaphore(0)

    def put(self, key: str, source: Any) -> None:
        self.asked.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        super().put(key, source)


def persisting(node: Any, store: GatedStore, state: dict[str, Any]) -> tuple[dict[str, Any], Checkpointer]:
    """The first iteration of round 1 is on its way to the store; the state and who saves it."""
    node.begin(1)
    checkpointer = train(node, state, 1)
    assert store.asked.acquire(timeout=PATIENCE_S)
    return state, checkpointer


def test_while_the_store_is_slow_training_goes_on_and_the_newest_wins(
    make_node: Any, make_state: Any, tmp_path: Path, caplog: Any
) -> None:
    store = GatedStore(tmp_path / "slow")
    node = make_node(interval=1, store=store)
    state, checkpointer = persisting(node, store, make_state(1))
    for iteration in range(2, 8):
        checkpointer.save(iteration, state)
    assert node.keeper.skipped == 5
    store.gate.release(2)
    wait_until(lambda: len(node.persisted) == 2, "two commits", PATIENCE_S)
    assert [holding.iteration for holding in node.persisted] == [1, 7]
    assert "iteration 6 is not persisted" in caplog.text


def test_a_later_rounds_state_is_not_persisted_by_a_node_that_does_not_persist_in_it(
    make_node: Any, make_state: Any, tmp_path: Path
) -> None:
    store = GatedStore(tmp_path / "slow")
    node = make_node(interval=1, store=store)
    state, checkpointer = persisting(node, store, make_state(1))
    checkpointer.save(2, state)
    node.begin(2, node.newest(), persists=False)
    train(node, state, 4, round_=2)
    node.begin(3, node.newest())
    store.gate.release(9)
    train(node, state, 1, round_=3)
    wait_until(lambda: node.persisted[-1:] and node.persisted[-1].round == 3, "a commit of round 3", PATIENCE_S)
    assert {holding.round for holding in node.persisted} == {1, 3}


def test_a_worker_that_never_loads_is_not_held_up_by_what_it_could_have_loaded(
    make_node: Any, make_state: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that the round starts from is there only after the worker has staged; the store takes its time."""
    store, staged, looked = GatedStore(tmp_path / "slow"), threading.Event(), threading.Event()

    def late(*_: object) -> None:
        assert staged.wait(PATIENCE_S)
        looked.set()

    monkeypatch.setattr(keeper_io, "check_shard", late)
    node = make_node(interval=1, store=store)
    state, checkpointer = persisting(node, store, make_state(1))
    checkpointer.save(2, state)
    node.begin(2, node.newest())
    checkpointer = train(node, state, 1, round_=2)
    staged.set()
    assert looked.wait(PATIENCE_S)
    wait_until(
        lambda: node.keeper.wait_for_restore(0).source == "memory", "the state in the node's own memory", PATIENCE_S
    )
    save_thread = threading.Thread(target=checkpointer.save, args=(2, state), daemon=True)
    save_thread.start()
    save_thread.join(PATIENCE_S)
    assert not save_thread.is_alive()
    store.gate.release(9)


def test_a_node_that_leaves_while_it_fetches_leaves_no_shared_memory(make_node: Any, tmp_path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    class SlowStore(DirectoryStore):
        def read_into(self, key: str, start: int, buffer: memoryview) -> None:
            begun.set()
            assert gate.wait(PATIENCE_S)
            raise StoreError("too late")

    node = make_node(store=SlowStore(tmp_path / "slow"))
    holding = Holding(1, 5, size=20, digest="0" * 32, key="shard")
    node.begin(2, Restore(1, 5, (holding, holding), ""))
    assert begun.wait(PATIENCE_S)
    node.close()
    gate.set()
    with pytest.raises(KeeperError, match=r"this node is leaving|the round ended"):
        node.keeper.wait_for_restore(0)
    assert os.listdir(node.shm) == []


def test_what_is_asked_for_is_persisted_though_others_are_skipped(
    make_node: Any, make_state: Any, tmp_path: Path
) -> None:
    store = GatedStore(tmp_path / "slow")
    node = make_node(interval=1, store=store)
    state, checkpointer = persisting(node, store, make_state(1))
    checkpointer.save(2, state, persist=True)
    checkpointer.save(3, state)
    store.gate.release(9)
    checkpointer.save(4, state)
    wait_until(
        lambda: {1, 2, 4} <= {holding.iteration for holding in node.persisted}, "commits of 1, 2 and 4", PATIENCE_S
    )


def test_a_waiting_stage_ends_with_the_worker_that_waits(make_node: Any, make_state: Any, tmp_path: Path) -> None:
    store = GatedStore(tmp_path / "slow")
    node = make_node(store=store)
    node.begin(1)
    state = make_state(1)
    checkpointer = train(node, state, 1)
    for iteration in (2, 3, 4):
        checkpointer.save(iteration, state, persist=iteration < 4)
    failed = threading.Event()

    def wait() -> None:
        with pytest.raises(KeeperError, match="died"):
            node.keeper.acquire(0, 5)
        failed.set()

    assert node.keeper.try_acquire(0, 5) is None
    threading.Thread(target=wait, daemon=True).start()
    wait_until(lambda: node.keeper.worker_died(0) or failed.is_set(), "the worker's death is known", PATIENCE_S)
    store.gate.release(9)


def test_flush_tells_why_the_store_refused(make_node: Any, make_state: Any, tmp_path: Path) -> None:
    class FullStore(DirectoryStore):
        def put(self, key: str, source: Any) -> None:
            raise StoreError(f"{key}: cannot write: No space left on device")

    node = make_node(store=FullStore(tmp_path / "full"))
    node.begin(1)
    checkpointer = train(node, make_state(1), 2)
    with pytest.raises(LinkError, match=r"iteration 2 cannot be persisted: .*No space left"):
        checkpointer.flush(2)
    with pytest.raises(LinkError, match="iteration 9 is not staged"):
        checkpointer.flush(9)


def test_flush_outlasts_a_store_that_is_away_for_a_moment(make_node: Any, make_state: Any, tmp_path: Path) -> None:
    class AwayStore(DirectoryStore):
        refusals = 3

        def put(self, key: str, source: Any) -> None:
            self.refusals -= 1
            if self.refusals >= 0:
                raise StoreError(f"{key}: cannot write: Not a directory")
            super().put(key, source)

    store = AwayStore(tmp_path / "away")
    node = make_node(store=store, store_patience_s=PATIENCE_S)
    node.begin(1)
    checkpointer = train(node, make_state(1), 2)
    assert checkpointer.flush(2).endswith("/000001-000000002/manifest.json")
    assert store.refusals < 0


def test_flush_of_what_was_overwritten_since_commits_the_newest_of_its_round(node: Any, make_state: Any) -> None:
    """As a node that leaves does it: its worker trains on meanwhile."""
    node.begin(1)
    state = make_state(1)
    checkpointer = train(node, state, 3)
    flushed_iteration, last = node.newest().iteration, 3
    while flushed_iteration in {holding.iteration for holding in node.keeper.holdings("")}:
        last += 1
        checkpointer.save(last, state)
    assert node.keeper.flush(0, flushed_iteration) == f"jobs/job/checkpoints/000001-{last:09d}/manifest.json"
    assert [holding.iteration for holding in node.persisted] == [last]


def test_flush_of_a_shard_that_was_overwritten_fails_as_other_ranks_put_theirs(node: Any, make_state: Any) -> None:
    node.begin(1, world_size=2)
    train(node, make_state(1), 1)
    with node.keeper.open_shard(1, 1, 0) as shard:
        whole = bytes(shard)
    segment = node.keeper.announce(1, len(whole), is_sharded=True)
    slot = node.keeper.acquire(1, 5)
    with open(segment.path, "r+b") as file:
        file.seek(slot.offset)
        file.write(whole)
    node.keeper.commit_stage(1, Staged(slot.slot, 5, len(whole), False))
    with pytest.raises(KeeperError, match="iteration 4 is not staged"):
        node.keeper.flush(1, 4)


def test_flush_ends_with_its_round(make_node: Any, make_state: Any) -> None:
    node = make_node()
    node.commits = False
    node.begin(1)
    checkpointer = train(node, make_state(1), 2)
    reasons: list[str] = []

    def flush() -> None:
        with pytest.raises(LinkError, match="ended before iteration 2") as error:
            checkpointer.flush(2)
        reasons.append(str(error.value))

    thread = threading.Thread(target=flush)
    thread.start()
    wait_until(lambda: node.persisted, "a commit", PATIENCE_S)
    node.begin(2, node.newest())
    thread.join(PATIENCE_S)
    assert reasons


def test_a_finished_job_that_is_restarted_commits_its_last_state_in_the_new_round(node: Any, make_state: Any) -> None:
    node.begin(1)
    train(node, make_state(2), 7)
    node.begin(2, node.newest())
    live = make_state(0)
    checkpointer = Checkpointer(live, keeper=node.link(2))
    checkpointer.load(live)
    assert checkpointer.finish(live) == "jobs/job/checkpoints/000002-000000007/manifest.json"


def test_a_segment_survives_its_worker_and_close_leaves_nothing(node: Any, make_state: Any) -> None:
    node.begin(1)
    train(node, make_state(1), 1)
    first = os.listdir(node.shm)
    train(node, make_state(1), 1)
    assert os.listdir(node.shm) == first
    assert first[0].endswith("-worker-0-0-0")
    node.keeper.close()
    assert os.listdir(node.shm) == []


def test_a_state_of_another_size_gets_its_own_segment_and_the_old_one_stays_until_it_is_not_needed(
    node: Any, make_state: Any
) -> None:
    node.begin(1)
    train(node, make_state(1), 3)
    other = make_state(1) | {"more": torch.zeros(100000)}
    checkpointer = Checkpointer(other, keeper=node.link())
    assert len(os.listdir(node.shm)) == 2
    # Iteration 1 only if the third slot had its memory before it was wanted.
    assert {holding.iteration for holding in node.keeper.holdings("")} >= {2, 3}
    with node.keeper.open_shard(1, 3, 0):
        checkpointer.save(4, other)
        assert len(os.listdir(node.shm)) == 2
    wait_until(lambda: len(os.listdir(node.shm)) == 1, "the segment without a reader goes", PATIENCE_S)
    assert {holding.iteration for holding in node.keeper.holdings("")} == {4}


def test_a_state_whose_numbers_outgrow_their_place_is_staged_in_a_new_segment(node: Any, make_state: Any) -> None:
    node.begin(1)
    state = make_state(1) | {"log": [1.5]}
    checkpointer = train(node, state, 1)
    state["log"] = [float(number) for number in range(100_000)]
    checkpointer.save(2, state)
    node.begin(2, node.newest())
    live = make_state(0) | {"log": []}
    assert Checkpointer(live, keeper=node.link(2)).load(live) == 2
    assert live["log"] == state["log"]


def test_debris_of_an_earlier_incarnation_is_reclaimed_and_a_neighbours_is_not(make_node: Any, tmp_path: Path) -> None:
    old = make_node()
    old.keeper.announce(0, 100)
    shm, name = old.shm, os.listdir(old.shm)[0]
    (shm / (name + "0-7")).write_bytes(b"worker-0-0-00-7 is another node")
    again = Keeper(KeeperOptions("job", old.name, 1), old.store, Credentials(""), print, print, shm)
    assert os.listdir(shm) == [name + "0-7"]
    again.close()


def test_too_little_shared_memory_is_told_with_the_arithmetic(node: Any) -> None:
    with pytest.raises(SegmentError, match=r"3 slots of .* MB need .* MB, .* MB are free .*; enlarge"):
        node.keeper.announce(0, 1 << 50)
    assert os.listdir(node.shm) == []
