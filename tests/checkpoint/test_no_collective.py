"""A sharded state is saved without a word between ranks: one rank of four, of which the others do not exist."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer

RANKS = 4


@pytest.fixture
def one_of_four() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_a_save_of_fsdp2_neither_gathers_nor_asks_anybody(node: Any, one_of_four: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh  # A second and more, only where the test runs.
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    model = torch.nn.Sequential(torch.nn.Linear(256, 1024, bias=False), torch.nn.Linear(1024, 256, bias=False))
    whole = sum(parameter.numel() * 4 for parameter in model.parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    state = {"model": model, "iteration": 1}
    node.begin(1, world_size=RANKS)
    with CommDebugMode() as collectives:
        checkpointer = Checkpointer(state, keeper=node.link())
        for iteration in (1, 2):
            checkpointer.save(iteration, state)
    assert collectives.get_total_counts() == 0
    holdings_held = node.keeper.holdings("")
    assert {(holding.iteration, holding.shard, holding.shards) for holding in holdings_held} == {
        (1, 0, RANKS),
        (2, 0, RANKS),
    }
    assert all(whole / RANKS <= holding.size < whole / 2 for holding in holdings_held)
