"""Saving to and restoring from a store that fails as it is told; a flipped bit at each place that keeps a state."""

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper
from everstep.runtime.protocol.holdings import Restore
from everstep.runtime.protocol.worker_link import LinkError
from everstep.runtime.store import DirectoryStore, Entry, StoreError


class Trouble(Enum):
    """What happens to one object on its way."""

    NONE = "nothing"
    AMBIGUOUS = "it is written whole, and an error comes back"
    FULL = "half of it is written somewhere, it does not appear, and an error comes back"
    TRUNCATED = "half of it is read, then an error"
    FLIPPED = "it is read with one bit changed"
    STALE = "a list does not show it yet"


class BadStore(DirectoryStore):
    """A directory that suffers `trouble` once."""

    trouble = Trouble.NONE
    suffered = Trouble.NONE

    def _meets(self, *troubles: Trouble) -> bool:
        if self.trouble not in troubles:
            return False
        self.suffered, self.trouble = self.trouble, Trouble.NONE
        return True

    def put(self, key: str, source: Any) -> None:
        if self._meets(Trouble.FULL):
            raise StoreError(f"{key}: cannot write: No space left on device")
        super().put(key, source)
        if self._meets(Trouble.AMBIGUOUS):
            raise StoreError(f"{key}: the connection was cut")

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        if self._meets(Trouble.TRUNCATED):
            super().read_into(key, start, buffer[: len(buffer) // 2])
            raise StoreError(f"{key}: ends too early")
        super().read_into(key, start, buffer)
        if self._meets(Trouble.FLIPPED):
            buffer[len(buffer) // 2] ^= 1

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(()) if self._meets(Trouble.STALE) else super().list(prefix)


@pytest.fixture
def bad(tmp_path: Path) -> BadStore:
    return BadStore(tmp_path / "bad")


class Training:
    """A model that learns the same from the same state, whoever goes on with it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(6, 4)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": optimizer}

    def run(self, first: int, last: int, checkpointer: Checkpointer | None = None) -> None:
        for iteration in range(first, last + 1):
            torch.manual_seed(iteration)
            self.model(torch.randn(5, 6)).square().mean().backward()
            self.state["optimizer"].step()
            self.state["optimizer"].zero_grad()
            if checkpointer:
                checkpointer.save(iteration, self.state)


@pytest.mark.parametrize("trouble", [Trouble.AMBIGUOUS, Trouble.FULL])
def test_a_state_that_the_store_refused_is_told_and_the_next_flush_commits_it(
    make_node: Any, bad: BadStore, trouble: Trouble
) -> None:
    node, training = make_node(store=bad), Training()
    node.begin(1)
    checkpointer = Checkpointer(training.state, keeper=node.link())
    training.run(1, 3, checkpointer)
    bad.trouble = trouble
    with pytest.raises(LinkError, match="iteration 3 cannot be persisted"):
        checkpointer.flush(3)
    assert bad.suffered is trouble
    assert checkpointer.flush(3).endswith("/000001-000000003/manifest.json")
    node.begin(2, Restore(1, 3, tuple(node.persisted), ""))
    other = Training()
    fresh = make_node("worker-1-0", store=bad)
    fresh.begin(2, Restore(1, 3, tuple(node.persisted), ""))
    assert Checkpointer(other.state, keeper=fresh.link(2)).load(other.state) == 3
    assert torch.equal(other.model.weight, training.model.weight)


@pytest.mark.parametrize("trouble", [Trouble.TRUNCATED, Trouble.FLIPPED])
def test_what_a_store_gives_wrong_is_named_and_taken_from_the_next_place(
    make_node: Any, bad: BadStore, caplog: Any, trouble: Trouble
) -> None:
    node, training = make_node(store=bad), Training()
    node.begin(1)
    checkpointer = Checkpointer(training.state, keeper=node.link())
    training.run(1, 3, checkpointer)
    checkpointer.flush(3)
    (stored,) = node.persisted
    memory_holding = next(holding for holding in node.keeper.holdings(node.address) if holding.iteration == 3)
    fresh, other = make_node("worker-1-0", store=bad), Training()
    bad.trouble = trouble
    fresh.begin(2, Restore(1, 3, (stored, memory_holding), ""))
    assert Checkpointer(other.state, keeper=fresh.link(2)).load(other.state) == 3
    assert bad.suffered is trouble
    assert fresh.keeper.wait_for_restore(0).source == "peer worker-0-0"
    assert f"store {stored.key}" in caplog.text
    assert torch.equal(other.model.weight, training.model.weight)


def test_a_list_that_lags_delays_a_commit_and_gives_no_round_twice(bad: BadStore) -> None:
    training, alone = Training(), StandaloneKeeper(bad, "job")
    checkpointer = Checkpointer(training.state, keeper=alone)
    checkpointer.save(1, training.state, persist=True)
    checkpointer.flush(1)
    bad.trouble = Trouble.STALE
    checkpointer.save(2, training.state, persist=True)
    assert checkpointer.flush(2).endswith("/000001-000000002/manifest.json")
    assert bad.suffered is Trouble.STALE
    bad.trouble = Trouble.STALE
    other = Training()
    again = Checkpointer(other.state, keeper=StandaloneKeeper(bad, "job"))
    again.save(2, other.state, persist=True)
    assert again.flush(2).endswith("/000002-000000002/manifest.json")


def _flip(path: Path, whole: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(whole) + len(whole) - 40] ^= 1
    path.write_bytes(data)


def _in_memory(node: Any) -> Callable[[], None]:
    def flip() -> None:
        with node.keeper.open_shard(1, 4, 0) as shard:
            whole = bytes(shard)
        (path,) = node.shm.iterdir()
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(whole) + len(whole) - 40)
            file.write(bytes([whole[-40] ^ 1]))

    return flip


def test_training_goes_on_bit_for_bit_whichever_copy_has_a_flipped_bit(
    make_node: Any, store: DirectoryStore, caplog: Any
) -> None:
    undisturbed = Training()
    undisturbed.run(1, 9)
    nodes = [make_node(), make_node("worker-1-0")]
    for node in nodes:
        node.begin(1)
        training = Training()
        training.run(1, 4, Checkpointer(training.state, keeper=node.link()))
    checkpointer = Checkpointer(training.state, keeper=nodes[0].link())
    checkpointer.flush(4)
    (stored,) = nodes[0].persisted
    holdings_held = [
        holding for node in nodes for holding in node.keeper.holdings(node.address) if holding.iteration == 4
    ]

    def in_store() -> None:
        path = Path(store.uri) / stored.key
        _flip(path, path.read_bytes())

    damages = [
        ("own memory", _in_memory(nodes[0]), [*holdings_held, stored], nodes[0]),
        ("peer worker-1-0", _in_memory(nodes[1]), [holdings_held[1], stored], make_node("worker-2-0")),
        (f"store {stored.key}", in_store, [stored, holdings_held[0]], make_node("worker-3-0")),
    ]
    for place, damage, order, node in damages:
        damage()
        node.begin(2, Restore(1, 4, tuple(order), ""))
        resumed = Training()
        iteration = Checkpointer(resumed.state, keeper=node.link(2)).load(resumed.state)
        assert f"{place}: the digest of bytes" in caplog.text, "found, and named"
        resumed.run(iteration + 1, 9)
        assert torch.equal(resumed.model.weight, undisturbed.model.weight)
        caplog.clear()
