"""While memory is allocated, which takes a tenth of a second a GiB or more, the keeper answers whoever asks."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.checkpoint import segment as segment_module
from runtime.checkpoint.checkpointer import Checkpointer
from runtime.checkpoint.errors import SegmentError
from runtime.checkpoint.segment import SegmentFile
from runtime.job.messages import Restore
from tests.checkpoint.test_keeper import trained
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
    made = Gate()
    monkeypatch.setattr(segment_module, "allocate", made.allocate)
    return made


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def test_while_one_rank_waits_for_memory_the_others_stage_and_the_agent_is_answered(
    node: Any, make_state: Any, gate: Gate, in_thread: Any
) -> None:
    node.begin(1)
    checkpointer = trained(node, state := make_state(1), 2)
    announced = in_thread(node.keeper.announce, 1, LARGE)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    checkpointer.save(3, state)
    checkpointer.beacon(3, "forward")
    assert node.keeper.beacon(0) == (3, "forward")
    assert node.keeper.beacon(1) == (0, "")
    assert {held.iteration for held in node.keeper.holdings("")} >= {2, 3}
    assert not announced.done()
    gate.open.release()
    assert announced.result(PATIENCE_S).capacity == LARGE


def test_a_rank_that_announces_again_meanwhile_is_given_the_same_memory(node: Any, gate: Gate, in_thread: Any) -> None:
    node.begin(1)
    first = in_thread(node.keeper.announce, 0, LARGE)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    node.keeper.worker_died(0)
    second = in_thread(node.keeper.announce, 0, LARGE)
    gate.open.release()
    assert first.result(PATIENCE_S) == second.result(PATIENCE_S)
    assert len(os.listdir(node.shm)) == 1
    assert not gate.asked.acquire(blocking=False)


def test_a_rank_that_announces_something_else_meanwhile_is_given_that(node: Any, gate: Gate, in_thread: Any) -> None:
    node.begin(1)
    first = in_thread(node.keeper.announce, 0, LARGE)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    second = in_thread(node.keeper.announce, 0, 2 * LARGE)
    gate.open.release(2)
    assert first.result(PATIENCE_S).capacity == LARGE
    told = second.result(PATIENCE_S)
    assert [str(path) for path in node.shm.iterdir()] == [told.path]
    assert node.keeper.try_acquire(0, 1).offset == SegmentFile.open(Path(told.path)).offset(0)


def test_what_a_rank_holds_is_offered_until_its_new_memory_holds_a_state(
    node: Any, make_state: Any, gate: Gate, in_thread: Any
) -> None:
    node.begin(1)
    trained(node, make_state(1), 3)
    announced = in_thread(node.keeper.announce, 0, LARGE)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    node.keeper.worker_died(0)
    wait_until(lambda: [held.iteration for held in node.persisted] == [3], "iteration 3 is persisted", PATIENCE_S)
    node.begin(2, node.newest())
    assert node.keeper.fetched(0).iteration == 3
    gate.open.release()
    announced.result(PATIENCE_S)
    assert {held.iteration for held in node.keeper.holdings("")} == {1, 2, 3}


def test_a_node_that_leaves_meanwhile_leaves_nothing(node: Any, gate: Gate, in_thread: Any) -> None:
    node.begin(1)
    announced = in_thread(node.keeper.announce, 0, LARGE)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    node.keeper.close()
    assert os.listdir(node.shm) == []
    gate.open.release()
    with pytest.raises(SegmentError, match="leaving"):
        announced.result(PATIENCE_S)
    assert os.listdir(node.shm) == []


def test_memory_that_could_not_be_had_can_be_asked_for_again(node: Any, gate: Gate, in_thread: Any) -> None:
    node.begin(1)
    gate.error = OSError(28, "No space left on device")
    gate.open.release()
    with pytest.raises(SegmentError, match=r"3 slots of 4.2 MB need 12.6 MB"):
        node.keeper.announce(0, LARGE)
    gate.error = None
    gate.open.release()
    assert node.keeper.announce(0, LARGE).capacity == LARGE


def test_room_for_a_peers_copies_is_counted_beside_what_is_being_allocated(
    node: Any, gate: Gate, in_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.begin(1, peer="127.0.0.1:9", world_size=2)
    first = in_thread(node.keeper.announce, 0, LARGE, sharded=True)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    wanted: list[tuple[int, int]] = []

    def told(_: Path, slots: int, copies: int, capacity: int, others: int) -> None:
        wanted.append(((slots + copies) * capacity, others))

    monkeypatch.setattr("runtime.checkpoint.held.require_room", told)
    second = in_thread(node.keeper.announce, 1, LARGE, sharded=True)
    assert gate.asked.acquire(timeout=PATIENCE_S)
    gate.open.release(2)
    assert first.result(PATIENCE_S).slots == second.result(PATIENCE_S).slots == 4
    assert wanted == [(8 * LARGE, 4 * LARGE + segment_module.PAGE)]


def test_what_is_fetched_for_another_size_does_not_take_the_memory_that_the_worker_was_told_of(
    make_node: Any, make_state: Any, same: Any
) -> None:
    """The peer's numbers outgrew their place, this node's new worker has announced less."""
    peer, node = make_node("worker-1-0"), make_node()
    peer.begin(1)
    saved = make_state(2) | {"log": [float(number) for number in range(100_000)]}
    trained(peer, saved, 3)
    node.begin(1)
    live = make_state(0) | {"log": []}
    checkpointer = Checkpointer(live, link=node.link(1))
    node.begin(2, Restore(1, 3, peer.keeper.holdings(peer.address)[:1], ""))
    assert checkpointer.load(live) == 3
    assert same(live, saved)
    live["log"] = []
    checkpointer.save(4, live)
    assert max(held.iteration for held in node.keeper.holdings("")) == 4


def large(make_state: Any, seed: int) -> dict[str, Any]:
    return make_state(seed) | {"large": torch.full((LARGE // 4,), float(seed))}


@pytest.fixture
def fetched(make_node: Any, make_state: Any, gate: Gate) -> tuple[Node, dict[str, Any]]:
    """A node that has its start from a peer, and of the memory of its other slots nothing yet; that start."""
    gate.after = 1
    peer, node = make_node("worker-1-0"), make_node()
    peer.begin(1)
    trained(peer, saved := large(make_state, 2), 3)
    node.begin(2, Restore(1, 3, peer.keeper.holdings(peer.address)[:1], ""))
    assert node.keeper.fetched(0).source == "peer worker-1-0"
    assert gate.asked.acquire(timeout=PATIENCE_S)
    return node, saved


def test_a_start_is_fetched_before_the_slots_to_write_to_have_their_memory(
    fetched: tuple[Node, dict[str, Any]], make_state: Any, same: Any, gate: Gate, in_thread: Any
) -> None:
    (node, saved), live = fetched, large(make_state, 0)
    told = in_thread(Checkpointer, live, link=node.link(2))
    assert {held.iteration for held in node.keeper.holdings("")} == {3}
    assert not told.done()
    gate.open.release()
    checkpointer = told.result(PATIENCE_S)
    assert checkpointer.load(live) == 3
    assert same(live, saved)
    for iteration in range(4, 9):
        checkpointer.save(iteration, live)
    assert max(held.iteration for held in node.keeper.holdings("")) == 8
    assert len(os.listdir(node.shm)) == 1


def test_no_room_for_the_slots_to_write_to_is_told_to_the_worker_and_the_start_stays(
    fetched: tuple[Node, dict[str, Any]], make_state: Any, same: Any, gate: Gate
) -> None:
    (node, saved), live = fetched, large(make_state, 0)
    gate.after, gate.error = 0, OSError(28, "No space left on device")
    gate.open.release(2)
    with pytest.raises(SegmentError, match=r"3 slots of 4\.6 MB need 13\.8 MB"):
        node.keeper.announce(0, node.keeper.fetched(0).size)
    assert {held.iteration for held in node.keeper.holdings("")} == {3}
    gate.error = None
    gate.open.release()
    checkpointer = Checkpointer(live, link=node.link(2))
    assert checkpointer.load(live) == 3
    assert same(live, saved)
    checkpointer.save(4, live)
    wait_until(lambda: len(os.listdir(node.shm)) == 1, "the earlier segment goes")
