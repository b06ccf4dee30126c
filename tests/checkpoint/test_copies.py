"""Peer copies of a sharded state: when they are made, what waits for them, and what they are worth after a loss."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.errors import SegmentError
from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.job.restore import choose_restore
from everstep.runtime.protocol.holdings import Restore, Tier
from everstep.runtime.protocol.worker_link import Fetched, Staged
from tests.fake_agent import PATIENCE_S, Node
from tests.harness import wait_until


def stage(node: Node, iteration: int, bytes_more: int = 0) -> None:
    """What a rank's Checkpointer does with its shard."""
    tensors = {"weight": torch.full((5000 + bytes_more,), iteration + len(node.name), dtype=torch.uint8)}
    tree = flatten(tensors)
    text = json_bytes({"iteration": iteration, "state": tree.json})
    layout = plan_layout(tree.tensors, state_capacity(text))
    segment = SegmentFile.open(Path(node.keeper.announce(0, layout.size, is_sharded=True).path))
    slot = node.keeper.acquire(0, iteration).slot
    Stager(layout, tree).stage(slot, segment.slot(slot), tree, text, iteration)
    node.keeper.commit_stage(0, Staged(slot, iteration, layout.size, False))


def begin(nodes: list[Node], round_: int, restore: Restore | None = None, copies: int = 1) -> None:
    """One rank a node; each is a peer of the `copies` before."""
    for rank, node in enumerate(nodes):
        peers = tuple(nodes[(rank + turn) % len(nodes)].address for turn in range(1, copies + 1))
        node.keeper.holdings(node.address)
        place = {"first_rank": rank, "world_size": len(nodes), "peers": peers, "keeps": copies}
        node.begin(round_, restore, persists=not rank, **place)


def places_held(node: Node, shard: int) -> set[tuple[int, int]]:
    return {
        (holding.round, holding.iteration) for holding in node.keeper.holdings(node.address) if holding.shard == shard
    }


def restore_node(node: Node) -> Fetched:
    return node.keeper.wait_for_restore(0)


@pytest.fixture
def nodes(make_node: Callable[..., Node]) -> list[Node]:
    return [make_node(f"worker-{n}-0") for n in range(2)]


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> Any:
    """A peer that takes a connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        yield server


def test_what_is_staged_is_soon_in_the_peers_memory_too(nodes: list[Node]) -> None:
    begin(nodes, 1)
    for iteration in (1, 2, 3):
        for node in nodes:
            stage(node, iteration)
    for shard, keeper in ((0, nodes[1]), (1, nodes[0])):
        wait_until(
            lambda shard=shard, keeper=keeper: (1, 3) in places_held(keeper, shard), "a copy of iteration 3", PATIENCE_S
        )
        assert places_held(keeper, shard) <= {(1, 1), (1, 2), (1, 3)}


def test_room_for_a_peers_copies_is_asked_for_before_training_begins(nodes: list[Node]) -> None:
    free = os.statvfs(nodes[0].shm)
    fits_alone = free.f_bavail * free.f_frsize // 5  # Four slots of its own, and two for copies.
    nodes[0].begin(1, world_size=2, peers=("127.0.0.1:9",), keeps=1)
    with pytest.raises(
        SegmentError, match=r"4 slots of .* MB and 2 for copies of other nodes' shards need .* are free .*; enl"
    ):
        nodes[0].keeper.announce(0, fits_alone, is_sharded=True)
    assert os.listdir(nodes[0].shm) == []


def test_room_for_the_copies_of_several_nodes_is_asked_for_too(nodes: list[Node]) -> None:
    free = os.statvfs(nodes[0].shm)
    fits_with_one = free.f_bavail * free.f_frsize // 8  # Four slots of its own, and three for each of the two nodes.
    nodes[0].begin(1, world_size=3, peers=("127.0.0.1:9", "127.0.0.1:10"), keeps=2)
    with pytest.raises(SegmentError, match=r"4 slots of .* MB and 6 for copies of other nodes' shards need .* are fr"):
        nodes[0].keeper.announce(0, fits_with_one, is_sharded=True)


def test_a_rank_stages_again_only_when_its_last_state_is_copied(nodes: list[Node], silent: Any) -> None:
    nodes[0].begin(1, world_size=2, peers=(address_of(silent),))
    stage(nodes[0], 1)
    connection = silent.accept()[0]
    assert nodes[0].keeper.try_acquire(0, 2) is None
    connection.close()
    stage(nodes[0], 2)
    assert places_held(nodes[0], 0) == {(1, 1), (1, 2)}


def test_a_state_that_no_peer_takes_is_told_once_a_round(nodes: list[Node], caplog: Any) -> None:
    nodes[0].begin(1, world_size=2, peers=("127.0.0.1:9",), keeps=1)
    for iteration in (1, 2, 3):
        stage(nodes[0], iteration)
    wait_until(lambda: nodes[0].keeper.try_acquire(0, 4), "room for the next state", PATIENCE_S)
    wait_until(lambda: "has no copy in a peer's memory" in caplog.text, "the line that tells it", PATIENCE_S)
    assert caplog.text.count("has no copy in a peer's memory") == 1
    assert "127.0.0.1:9: " in caplog.text


def test_the_shards_of_a_nodes_ranks_are_fetched_side_by_side(
    nodes: list[Node], make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(nodes, 1)
    both = threading.Barrier(2, timeout=PATIENCE_S)
    for node in nodes:
        stage(node, 1)
    wait_until(
        lambda: (1, 1) in places_held(nodes[0], 1) and (1, 1) in places_held(nodes[1], 0),
        "copies on both nodes",
        PATIENCE_S,
    )
    for node in nodes:

        def open_shard(*place: int, really: Any = node.keeper.open_shard) -> Any:
            both.wait()
            return really(*place)

        monkeypatch.setattr(node.keeper, "open_shard", open_shard)
    sources = [
        holding
        for rank, node in enumerate(nodes)
        for holding in node.keeper.holdings(node.address)
        if holding.shard == rank
    ]
    fresh = make_node("worker-0-1", workers=2)
    fresh.begin(2, Restore(1, 1, tuple(sources), "newest whole"), world_size=2)
    assert [fresh.keeper.wait_for_restore(rank).source for rank in (0, 1)] == [f"peer {node.name}" for node in nodes]


def test_a_lost_nodes_shard_is_restored_from_its_peer(nodes: list[Node], make_node: Callable[..., Node]) -> None:
    begin(nodes, 1)
    for node in nodes:
        stage(node, 1)
    wait_until(lambda: (1, 1) in places_held(nodes[0], 1), "a copy of rank 1's shard", PATIENCE_S)
    nodes[1].close()
    restore = choose_restore(nodes[0].keeper.holdings(nodes[0].address))
    assert restore is not None
    assert restore.reason == "iteration 1 of round 1 is whole in memory"
    fresh = [nodes[0], make_node("worker-1-1")]
    begin(fresh, 2, restore)
    fetched = [restore_node(node) for node in fresh]
    assert [place.source for place in fetched] == ["memory", "peer worker-0-0"]
    assert [place.tier for place in fetched] == [Tier.MEMORY, Tier.PEER]
    # What a round starts from is copied before anything is staged.
    wait_until(lambda: (1, 1) in places_held(fresh[1], 0), "a copy on the fresh node", PATIENCE_S)


def test_two_lost_nodes_shards_are_restored_from_the_peer_that_is_left(make_node: Callable[..., Node]) -> None:
    nodes = [make_node(f"worker-{n}-0") for n in range(4)]
    begin(nodes, 1, copies=2)
    for iteration in (1, 2, 3):
        for node in nodes:
            stage(node, iteration)
    for shard, keepers in enumerate([(1, 2), (2, 3), (3, 0), (0, 1)]):
        for keeper in keepers:
            is_there = lambda: (1, 3) in places_held(nodes[keeper], shard)  # noqa: B023, E731
            wait_until(is_there, f"a copy of shard {shard}", PATIENCE_S)
            assert places_held(nodes[keeper], shard) >= {(1, 2), (1, 3)}, "of several copies the two newest are kept"
    for lost in nodes[:2]:  # Rank 0 and the first keeper of its copies.
        lost.close()
    restore = choose_restore(holding for node in nodes[2:] for holding in node.keeper.holdings(node.address))
    assert restore is not None
    assert (restore.iteration, restore.reason) == (3, "iteration 3 of round 1 is whole in memory")
    fresh = [make_node("worker-0-1"), make_node("worker-1-1"), *nodes[2:]]
    begin(fresh, 2, restore, copies=2)
    sources = [restore_node(node).source for node in fresh]
    assert sources == ["peer worker-2-0", "peer worker-2-0", "memory", "memory"]


def test_a_peer_that_says_nothing_does_not_hold_up_the_copy_of_another(
    nodes: list[Node], silent: Any, caplog: Any
) -> None:
    nodes[0].keeper.holdings(nodes[0].address)
    nodes[1].begin(1, first_rank=1, world_size=2)
    nodes[0].begin(1, world_size=2, peers=(address_of(silent), nodes[1].address))
    stage(nodes[0], 1)
    with silent.accept()[0]:
        wait_until(lambda: (1, 1) in places_held(nodes[1], 0), "the other's copy", PATIENCE_S)
        wait_until(lambda: "has sent nothing for 1.5 s" in caplog.text, "the line that tells it", PATIENCE_S)
    silent.settimeout(0.0)
    stage(nodes[0], 2)
    wait_until(lambda: (1, 2) in places_held(nodes[1], 0), "the next copy", PATIENCE_S)
    with pytest.raises(BlockingIOError):
        silent.accept()


def test_a_bit_flipped_in_a_peers_copy_falls_to_the_store_and_is_told(
    nodes: list[Node], make_node: Callable[..., Node]
) -> None:
    begin(nodes, 1)
    for node in nodes:
        stage(node, 1)
        node.keeper.persist_newest()
    wait_until(
        lambda: all(node.persisted for node in nodes) and (1, 1) in places_held(nodes[0], 1),
        "copied, committed",
        PATIENCE_S,
    )
    nodes[1].close()
    (copy,) = nodes[0].shm.glob("*-copy1")
    data = bytearray(copy.read_bytes())
    data[data.index(bytes([1 + len("worker-1-0")]) * 5000) + 77] ^= 16
    with copy.open("r+b") as file:
        file.write(data)
    stored = [place for node in nodes for place in node.persisted]
    restore = choose_restore([*nodes[0].keeper.holdings(nodes[0].address), *stored])
    fresh = [nodes[0], make_node("worker-1-1")]
    begin(fresh, 2, restore)
    outcome = restore_node(fresh[1])
    assert outcome.tier is Tier.STORE
    assert outcome.source == "store jobs/job/checkpoints/000001-000000001/rank-00001.safetensors"
    assert "peer worker-0-0: the digest of bytes" in outcome.why
    assert restore_node(fresh[0]).why == ""


def test_copies_of_what_a_round_rolls_back_are_let_go(nodes: list[Node]) -> None:
    begin(nodes, 1)
    for node in nodes:
        stage(node, 1)
    stage(nodes[1], 2)
    wait_until(lambda: places_held(nodes[0], 1) == {(1, 1), (1, 2)}, "copies of both iterations", PATIENCE_S)
    restore = choose_restore(nodes[0].keeper.holdings(nodes[0].address))
    begin(nodes, 2, restore)
    assert restore is not None
    assert restore.iteration == 1
    assert places_held(nodes[0], 1) == {(1, 1)}


def test_copies_of_an_earlier_round_go_when_all_have_staged_and_copied_in_this_one(
    nodes: list[Node], make_node: Callable[..., Node]
) -> None:
    begin(nodes, 1)
    for node in nodes:
        stage(node, 1)
    wait_until(lambda: (1, 1) in places_held(nodes[0], 1), "a copy of rank 1's shard", PATIENCE_S)
    three = [*nodes, make_node("worker-2-0")]
    begin(three, 2, choose_restore(nodes[0].keeper.holdings(nodes[0].address)))
    for iteration in (1, 2, 3):
        assert any("copy1" in name for name in os.listdir(nodes[0].shm))
        for node in three:
            stage(node, iteration)
    wait_until(lambda: (2, 3) in places_held(nodes[0], 2), "a copy of round 2", PATIENCE_S)
    assert sorted(name.rpartition("-")[2] for name in os.listdir(nodes[0].shm)) == ["0", "copy2"]


def test_a_peer_without_room_says_so_and_the_training_goes_on(nodes: list[Node], caplog: Any) -> None:
    begin(nodes, 1)
    nodes[1].keeper.close()
    stage(nodes[0], 1)
    stage(nodes[0], 2)
    wait_until(lambda: "this node is leaving" in caplog.text, "the peer's refusal", PATIENCE_S)
    stage(nodes[0], 3)
    assert (1, 3) in places_held(nodes[0], 0)


def test_no_copy_outlives_its_node(nodes: list[Node]) -> None:
    begin(nodes, 1)
    stage(nodes[0], 1)
    wait_until(lambda: (1, 1) in places_held(nodes[1], 0), "a copy of rank 0's shard", PATIENCE_S)
    assert [name.rpartition("-")[2] for name in os.listdir(nodes[1].shm)] == ["copy0"]
    nodes[1].keeper.close()
    assert os.listdir(nodes[1].shm) == []


def test_a_save_does_not_wait_long_for_a_peer_that_takes_the_question_and_says_nothing(
    nodes: list[Node], silent: Any, caplog: Any
) -> None:
    nodes[0].begin(1, world_size=2, peers=(address_of(silent),))
    stage(nodes[0], 1)
    connection = silent.accept()[0]
    stage(nodes[0], 2)
    wait_until(lambda: "has sent nothing for 1.5 s" in caplog.text, "the line that tells it", PATIENCE_S)
    # It is not asked again at once: no later save waits at all.
    silent.settimeout(0.0)
    with pytest.raises(BlockingIOError):
        silent.accept()
    for iteration in (3, 4):
        assert nodes[0].keeper.try_acquire(0, iteration)
    connection.close()


def test_a_peer_says_that_it_gets_on_until_it_holds_the_copy(nodes: list[Node], silent: Any, caplog: Any) -> None:
    nodes[0].begin(1, world_size=2, peers=(address_of(silent),))
    stage(nodes[0], 1)
    with silent.accept()[0] as connection:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n.\r\n")
        assert nodes[0].keeper.try_acquire(0, 2) is None
        connection.sendall(b"1\r\n.\r\n4\r\nheld\r\n0\r\n\r\n")
        wait_until(lambda: nodes[0].keeper.try_acquire(0, 2), "room for the next state", PATIENCE_S)
    assert caplog.text == ""


def test_a_new_round_asks_a_silent_peer_again(nodes: list[Node], silent: Any, caplog: Any) -> None:
    for round_ in (1, 2):
        nodes[0].begin(round_, world_size=2, peers=(address_of(silent),))
        stage(nodes[0], 1)
        with silent.accept()[0]:
            wait_until(lambda round_=round_: caplog.text.count("sent nothing") == round_, "the line", PATIENCE_S)
