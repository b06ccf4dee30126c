"""What a worker finds to be no state, though its digests are right, is told the agent; it waits for its end."""

import threading
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.shard.reshard import read_whole
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.protocol.holdings import Flaw, Holding, Restore
from tests.checkpoint.test_crafted import shard
from tests.checkpoint.test_keeper import train
from tests.fake_agent import PATIENCE_S

WRONG = b'{"iteration":8,"state":{"model":{"w":{"$":"tensor","name":"model.w"}},"it":3}}'


def store_shard(node: Any, data: bytearray, iteration: int = 3) -> Holding:
    from everstep.runtime.checkpoint.shard.digests import seal

    key = f"jobs/job/checkpoints/000001-{iteration:09d}/rank-00000.safetensors"
    digest = seal(memoryview(data))
    node.store.put(key, bytes(data))
    return Holding(1, iteration, size=len(data), key=key, digest=digest)


def load(node: Any, holding: Holding) -> Any:
    """By a worker that waits for the round's end as long as the test lasts; what the agent is told."""
    node.begin(2, Restore(holding.round, holding.iteration, (holding,), ""))
    state = {"model": {"w": torch.zeros(1 << 12)}, "it": 0}
    worker = Checkpointer(state, keeper=node.link(2))
    threading.Thread(target=worker.load, args=(state,), daemon=True).start()
    return node.refused.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("text", [b'{"iteration":3,"state":{"$":"later"}}', WRONG])
def test_a_shard_that_is_no_state_is_told_the_agent(text: bytes, node: Any) -> None:
    (refusal,) = load(node, holding := store_shard(node, shard(text=text)))
    assert (refusal.round, refusal.iteration, refusal.flaw) == (1, 3, Flaw.DAMAGED)
    assert refusal.covers(holding)


def test_another_models_checkpoint_is_the_users_error(node: Any, make_state: Any) -> None:
    node.begin(1)
    train(node, make_state(1), 1)
    node.begin(2, node.newest())
    other = {"model": torch.nn.Linear(2, 2)}
    with pytest.raises(RestoreError, match="of another model"):
        Checkpointer(other, keeper=node.link(2)).load(other)
    assert node.refused.empty()


def test_shards_of_another_iteration_than_was_committed_are_no_state(node: Any) -> None:
    holding = store_shard(node, shard(), 4)
    with pytest.raises(RestoreError, match="shards of iteration 3 are in it"):
        read_whole([holding], lambda source, start, buffer: node.store.read_into(source.key, start, buffer))
