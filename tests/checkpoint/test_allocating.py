"""Slots get their memory, which takes a tenth of a second a GiB or more, while the keeper answers whoever asks."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.errors import KeeperError
from everstep.runtime.checkpoint.node.core.slots import SlotTable
from everstep.runtime.checkpoint.shard import segment as segment_module
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.shard.sizes import PAGE
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.protocol.holdings import CopyRequest, Restore
from everstep.runtime.protocol.worker_link import LinkError, Segment, Staged
from tests.checkpoint.test_keeper import train
from tests.fake_agent import PATIENCE_S, Node
from tests.harness import wait_until

LARGE = 4 << 20
"""What is allocated only when the test says so."""


class Gate:
    """Allocations of at least LARGE bytes wait here, from `after` on in the file."""

    def __init__(self) -> None:
        self.after = 0
        self.asked, self.open = threading.Semaphore(0), threading.Semaphore(0)
        self.error: OSError | None = None
        self._real = segment_module.allocate

    def allocate(self, file: int, memory: memoryview, start: int, end: int) -> None:
        if end - start >= LARGE and start >= self.after:
            self.asked.release()
            assert self.open.acquire(timeout=PATIENCE_S)
            if self.error:
                raise self.error
        self._real(file, memory, start, end)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    allocation_gate = Gate()
    monkeypatch.setattr(segment_module, "allocate", allocation_gate.allocate)
    return allocation_gate


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def begin_to_allocate(node: Any, gate: Gate, local_rank: int = 0, capacity: int = LARGE) -> Segment:
    """That rank has announced, and its first slot's memory is asked for."""
    answer = node.keeper.announce(local_rank, capacity)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    return answer


def test_while_one_rank_waits_for_memory_the_others_stage_and_the_agent_is_answered(
    node: Any, make_state: Any, gate: Gate, in_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.begin(1)
    checkpointer = train(node, state := make_state(1), 2)
    assert begin_to_allocate(node, gate, local_rank=1).capacity == LARGE
    waits, absent = threading.Event(), SlotTable.absent
    monkeypatch.setattr(SlotTable, "absent", lambda table: waits.set() or absent(table))
    acquired = in_thread(node.keeper.acquire, 1, 1)
    assert waits.wait(PATIENCE_S)
    checkpointer.save(3, state)
    checkpointer.beacon(3, "forward")
    assert node.keeper.beacon(0) == (3, "forward")
    assert node.keeper.beacon(1) == (0, "")
    assert {holding.iteration for holding in node.keeper.holdings("")} >= {2, 3}
    assert not acquired.done()
    gate.open.release()
    slot = acquired.result(PATIENCE_S)
    assert slot.slot == 0
    assert slot.waited_s > 0
    gate.open.release(2)


def test_a_worker_that_dies_while_it_waits_for_memory_waits_no_longer(node: Any, gate: Gate, in_thread: Any) -> None:
    node.begin(1)
    begin_to_allocate(node, gate)
    acquired = in_thread(node.keeper.acquire, 0, 1)
    wait_until(lambda: node.keeper.worker_died(0) or acquired.done(), "the wait ends with the worker", PATIENCE_S)
    with pytest.raises(KeeperError, match="died while it waited"):
        acquired.result()
    gate.open.release(3)


def test_a_rank_that_announces_again_meanwhile_is_given_the_same_memory(node: Any, gate: Gate) -> None:
    node.begin(1)
    first = begin_to_allocate(node, gate)
    node.keeper.worker_died(0)
    assert node.keeper.announce(0, LARGE) == first
    gate.open.release(3)
    assert [node.keeper.acquire(0, iteration).slot for iteration in (1, 2)] == [0, 0], "given up, and given again"
    assert len(os.listdir(node.shm)) == 1
    assert all(gate.asked.acquire(timeout=PATIENCE_S) for _ in range(2))
    assert not gate.asked.acquire(blocking=False)


def test_a_rank_that_announces_something_else_meanwhile_is_given_that(node: Any, gate: Gate) -> None:
    node.begin(1)
    begin_to_allocate(node, gate)
    answer = begin_to_allocate(node, gate, capacity=2 * LARGE)
    assert [str(path) for path in node.shm.iterdir()] == [answer.path]
    gate.open.release(4)
    assert node.keeper.acquire(0, 1).offset == SegmentFile.open(Path(answer.path)).slot_offset(0)
    assert all(gate.asked.acquire(timeout=PATIENCE_S) for _ in range(2)), "the other slots of the second one"
    assert not gate.asked.acquire(timeout=0.1), "the first one gets no more"


def test_what_a_rank_holds_is_offered_until_its_new_memory_holds_a_state(
    node: Any, make_state: Any, gate: Gate
) -> None:
    node.begin(1)
    train(node, make_state(1), 3)
    begin_to_allocate(node, gate)
    node.keeper.worker_died(0)
    wait_until(lambda: [holding.iteration for holding in node.persisted] == [3], "iteration 3 is persisted", PATIENCE_S)
    node.begin(2, node.newest())
    assert node.keeper.wait_for_restore(0).iteration == 3
    gate.open.release(3)
    assert node.keeper.acquire(0, 4).slot == 0
    assert {holding.iteration for holding in node.keeper.holdings("")} == {1, 2, 3}


def test_what_was_staged_just_before_a_rank_announced_something_else_is_held(
    node: Any, make_state: Any, gate: Gate
) -> None:
    node.begin(1)
    train(node, make_state(1), 2).flush(2)
    (old,) = node.shm.iterdir()
    whole = SegmentFile.open(old)
    slot = node.keeper.acquire(0, 3).slot
    whole.slot(slot)[:] = whole.slot(1)
    begin_to_allocate(node, gate)
    node.keeper.commit_stage(0, Staged(slot, 3, whole.capacity, False))
    assert {holding.iteration for holding in node.keeper.holdings("")} == {1, 2, 3}
    gate.open.release(3)


def test_a_node_that_leaves_meanwhile_leaves_nothing(node: Any, gate: Gate, in_thread: Any) -> None:
    node.begin(1)
    begin_to_allocate(node, gate)
    acquired = in_thread(node.keeper.acquire, 0, 1)
    with pytest.raises(TimeoutError):
        acquired.result(0.1)
    node.keeper.close()
    assert os.listdir(node.shm) == []
    with pytest.raises(KeeperError, match="leaving"):
        acquired.result(PATIENCE_S)
    gate.open.release()
    assert not gate.asked.acquire(timeout=0.1), "nothing more is allocated"
    assert os.listdir(node.shm) == []


def test_memory_that_could_not_be_had_can_be_asked_for_again(node: Any, gate: Gate) -> None:
    node.begin(1)
    gate.error = OSError(28, "No space left on device")
    gate.open.release()
    begin_to_allocate(node, gate)
    with pytest.raises(KeeperError, match=r"3 slots of 4.2 MB need 12.6 MB"):
        node.keeper.acquire(0, 1)
    gate.error = None
    gate.open.release(3)
    begin_to_allocate(node, gate)
    assert node.keeper.acquire(0, 1).slot == 0
    assert len(os.listdir(node.shm)) == 1


def test_a_copy_that_has_no_memory_for_both_slots_is_refused_and_leaves_nothing(
    make_node: Any, make_state: Any, gate: Gate
) -> None:
    peer, node = make_node("worker-1-0"), make_node()
    gate.after = 1 << 40
    peer.begin(1)
    train(peer, large(make_state, 2), 3)
    (holding,) = peer.keeper.holdings(peer.address)[:1]
    gate.after, gate.error = PAGE + 1, OSError(28, "No space left on device")
    gate.open.release()
    with pytest.raises(KeeperError, match=r"2 slots of 4\.6 MB need 9\.2 MB"):
        node.keeper.copy_shard(CopyRequest(holding), lambda: None)
    wait_until(lambda: os.listdir(node.shm) == [], "the file with one slot goes", PATIENCE_S)
    gate.after = 1 << 40
    node.keeper.copy_shard(CopyRequest(holding), lambda: None)
    assert {holding.iteration for holding in node.keeper.holdings("")} == {3}
    assert len(os.listdir(node.shm)) == 1


def test_room_for_a_peers_copies_is_counted_beside_what_is_being_allocated(
    node: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.begin(1, peers=("127.0.0.1:9",), keeps=1, world_size=2)
    room_requests: list[tuple[int, int]] = []

    def note_room(_: Path, slots: int, copies: int, capacity: int, others: int) -> None:
        room_requests.append(((slots + copies) * capacity, others))

    monkeypatch.setattr("everstep.runtime.checkpoint.node.keeper_io.require_room", note_room)
    slots = [node.keeper.announce(rank, LARGE, is_sharded=True).slots for rank in range(2)]
    gate.open.release(8)
    assert slots == [4, 4]
    assert room_requests == [(6 * LARGE, 0), (8 * LARGE, 4 * LARGE)]


def test_what_is_fetched_for_another_size_does_not_take_the_memory_that_the_worker_was_told_of(
    make_node: Any, make_state: Any, same: Any
) -> None:
    """The peer's numbers outgrew their place, this node's new worker has announced less."""
    peer, node = make_node("worker-1-0"), make_node()
    peer.begin(1)
    saved_state = make_state(2) | {"log": [float(number) for number in range(100_000)]}
    train(peer, saved_state, 3)
    node.begin(1)
    live = make_state(0) | {"log": []}
    checkpointer = Checkpointer(live, keeper=node.link(1))
    node.begin(2, Restore(1, 3, peer.keeper.holdings(peer.address)[:1], ""))
    assert checkpointer.load(live) == 3
    assert same(live, saved_state)
    live["log"] = []
    checkpointer.save(4, live)
    assert max(holding.iteration for holding in node.keeper.holdings("")) == 4


def large(make_state: Any, seed: int) -> dict[str, Any]:
    return make_state(seed) | {"large": torch.full((LARGE // 4,), float(seed))}


@pytest.fixture
def fetched(make_node: Any, make_state: Any, gate: Gate) -> tuple[Node, dict[str, Any]]:
    """A node that has its start from a peer, and of the memory of its other slots nothing yet; that start."""
    peer, node = make_node("worker-1-0"), make_node()
    gate.after = 1 << 40
    peer.begin(1)
    train(peer, saved_state := large(make_state, 2), 3)
    gate.after = PAGE + 1
    node.begin(2, Restore(1, 3, peer.keeper.holdings(peer.address)[:1], ""))
    assert node.keeper.wait_for_restore(0).source == "peer worker-1-0"
    assert gate.asked.acquire(timeout=PATIENCE_S)
    return node, saved_state


def test_a_start_is_fetched_and_loaded_before_the_slots_to_write_to_have_their_memory(
    fetched: tuple[Node, dict[str, Any]], make_state: Any, same: Any, gate: Gate, in_thread: Any
) -> None:
    (node, saved_state), live = fetched, large(make_state, 0)
    checkpointer = Checkpointer(live, keeper=node.link(2))
    assert {holding.iteration for holding in node.keeper.holdings("")} == {3}
    assert checkpointer.load(live) == 3
    assert same(live, saved_state)
    saving = in_thread(checkpointer.save, 4, live)
    with pytest.raises(TimeoutError):
        saving.result(0.1)
    gate.open.release(2)
    saving.result(PATIENCE_S)
    for iteration in range(5, 9):
        checkpointer.save(iteration, live)
    assert max(holding.iteration for holding in node.keeper.holdings("")) == 8
    assert len(os.listdir(node.shm)) == 1


def test_no_room_for_the_slots_to_write_to_is_told_to_the_worker_and_the_start_stays(
    fetched: tuple[Node, dict[str, Any]], make_state: Any, same: Any, gate: Gate
) -> None:
    (node, saved_state), live = fetched, large(make_state, 0)
    checkpointer = Checkpointer(live, keeper=node.link(2))
    assert checkpointer.load(live) == 3
    gate.error = OSError(28, "No space left on device")
    gate.open.release()
    with pytest.raises(LinkError, match=r"3 slots of 4\.6 MB need 13\.8 MB"):
        checkpointer.save(4, live)
    assert {holding.iteration for holding in node.keeper.holdings("")} == {3}
    gate.after = 1 << 40
    live = large(make_state, 0)
    checkpointer = Checkpointer(live, keeper=node.link(2))
    assert checkpointer.load(live) == 3
    assert same(live, saved_state)
    checkpointer.save(4, live)
    wait_until(lambda: len(os.listdir(node.shm)) == 1, "the earlier segment goes")
    assert {holding.iteration for holding in node.keeper.holdings("")} == {4}


def test_the_slots_of_a_worker_are_mapped_as_they_get_their_memory(
    node: Any, make_state: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    populated: list[int] = []
    monkeypatch.setattr(segment_module, "populate", lambda memory, start, size: populated.append(start))
    node.begin(1)
    checkpointer = Checkpointer(live := large(make_state, 1), keeper=node.link(1))
    assert checkpointer.load(live) == 0
    for slot in range(3):
        assert gate.asked.acquire(timeout=PATIENCE_S)
        ready = len(populated)
        gate.open.release()
        wait_until(lambda ready=ready: len(populated) > ready, f"slot {slot} is mapped", PATIENCE_S)
    (file,) = node.shm.iterdir()
    segment = SegmentFile.open(file)
    wait_until(lambda: {segment.slot_offset(slot) for slot in range(3)} <= set(populated), "all are mapped", PATIENCE_S)
