"""On a CUDA device: saved while the device works, restored bit for bit."""

from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_state_on_the_device_is_saved_after_its_last_step_and_restored_bit_for_bit(node: Any, same: Any) -> None:
    def make_state(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512)).cuda()
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)}

    def step(state: dict[str, Any]) -> None:
        state["model"](torch.randn(256, 512, device="cuda")).square().mean().backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()

    node.begin(1)
    saved_state, live = make_state(1), make_state(2)
    checkpointer = Checkpointer(saved_state, keeper=node.link())
    for iteration in (1, 2, 3):
        step(saved_state)  # Still queued on the device when the save begins.
        checkpointer.save(iteration, saved_state)
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    assert Checkpointer(live, keeper=node.link(2)).load(live) == 3
    assert same(live, saved_state)
    for state in (saved_state, live):
        torch.manual_seed(9)
        step(state)
    assert same(live, saved_state)
