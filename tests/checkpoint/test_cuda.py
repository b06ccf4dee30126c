"""On a CUDA device: saved while the device works, restored bit for bit.

`test_cuda_copies` runs these tests on a stand-in, where there is no device, but for that of a CUDA graph.
"""

import gc
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.shard import cuda_copies
from everstep.runtime.checkpoint.shard.layout import read_header
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from tests.harness import wait_until

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda"
WIDTH = 4096


def make_state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    layers = torch.nn.Linear(512, WIDTH), torch.nn.GELU(), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 512)
    model = torch.nn.Sequential(*layers).to(DEVICE)
    others = {
        "half": torch.randn(300, device=DEVICE).bfloat16(),
        "columns": torch.randn(30, 40, device=DEVICE).T,
        "mask": torch.randn(7, device=DEVICE) > 0,
        "complex": torch.randn(5, device=DEVICE).to(torch.complex64).conj(),
        "scalar": torch.randn(1, device=DEVICE)[0],
        "here": torch.randn(9),
    }
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), "others": others}


def step(state: dict[str, Any]) -> None:
    state["model"](torch.randn(256, 512, device=DEVICE)).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def wait_until_registered(checkpointer: Checkpointer) -> None:
    """Those slots that were written."""
    assert checkpointer._overlapped is not None
    for registration in checkpointer._overlapped._registrations.values():
        registration.result()


def test_a_state_on_the_device_is_saved_after_its_last_step_and_restored_bit_for_bit(node: Any, same: Any) -> None:
    node.begin(1)
    saved_state, live = make_state(1), make_state(2)
    checkpointer = Checkpointer(saved_state, keeper=node.link())
    for iteration in range(1, 7):  # The last ones into slots that are registered.
        step(saved_state)  # Still queued on the device when the save begins.
        checkpointer.save(iteration, saved_state)
    checkpointer.close()
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    again = Checkpointer(live, keeper=node.link(2))
    assert again.load(live) == 6
    assert same(live, saved_state)
    for state in (saved_state, live):
        torch.manual_seed(9)
        step(state)
    assert same(live, saved_state)
    again.save(7, live)  # The next round goes on with the same slots.
    again.close()
    assert node.newest().iteration == 7


def test_what_is_saved_beside_training_is_of_one_moment(node: Any) -> None:
    sizes = [1 << 21] * 6 + [300] * 20
    parameters = [torch.nn.Parameter(torch.zeros(size, device=DEVICE)) for size in sizes]
    for parameter in parameters:
        parameter.grad = -torch.ones_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1.0)  # So a parameter is the number of its steps.
    state = {"weights": dict(enumerate(parameters)), "optimizer": optimizer}
    factor = torch.randn(WIDTH, WIDTH, device=DEVICE)
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    for iteration in range(1, 13):
        torch.mm(factor, factor)  # The step comes while the last save's copies run, or did not begin.
        optimizer.step()
        checkpointer.save(iteration, state)  # Waits for the commit of the last one.
        if iteration > 1:
            assert values_in(node, iteration - 1) == {iteration - 1.0}
    checkpointer.close()


def values_in(node: Any, iteration: int) -> set[float]:
    """Of the tensors of that iteration in the node's memory."""
    with node.keeper.open_shard(1, iteration, 0) as shard:
        views = [place.view(shard) for place in read_header(shard).tensors.values()]
        return {float(value) for view in views for value in view.aminmax()}


def test_what_is_saved_is_of_one_moment_where_steps_are_in_a_graph(node: Any) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1 << 21, device=DEVICE)) for _ in range(6)]
    for parameter in parameters:
        parameter.grad = -torch.ones_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    graph, warm_up = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(warm_up)
    with torch.cuda.graph(graph):
        optimizer.step()
    node.begin(1)
    state = {"weights": dict(enumerate(parameters)), "optimizer": optimizer}
    checkpointer = Checkpointer(state, keeper=node.link())
    for iteration in range(1, 13):
        graph.replay()
        checkpointer.save(iteration, state)
        graph.replay()
        checkpointer.flush(iteration)
        assert values_in(node, iteration) == {2.0 * iteration}
    checkpointer.close()


def test_each_slot_is_registered_beside_training_and_from_round_to_round_as_long_as_it_is_mapped(node: Any) -> None:
    state = make_state(1)
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    node.has_memory()
    for iteration in range(1, 5):
        checkpointer.save(iteration, state)
    checkpointer.finish(state)
    segment = checkpointer.segment
    assert segment is not None
    wait_until_registered(checkpointer)
    checkpointer.close()
    slots = [torch.frombuffer(segment.slot(number), dtype=torch.uint8) for number in range(3)]
    del checkpointer
    assert [slot.is_pinned() for slot in slots] == [True] * 3
    node.begin(2, node.newest())
    again = Checkpointer(state, keeper=node.link(2), ahead=segment)
    assert again.load(state) == 4
    again.save(5, state)
    again.close()
    assert [slot.is_pinned() for slot in slots] == [True] * 3
    del again, segment
    # A thread that maps pages ahead may hold a segment for a moment longer than its checkpointer lives.
    wait_until(lambda: gc.collect() >= 0 and not any(slot.is_pinned() for slot in slots), "not pinned")
    assert [slot.is_pinned() for slot in slots] == [False] * 3


def test_tensors_that_lie_in_two_registered_parts_of_a_slot_are_saved_and_restored(
    node: Any, same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_copies, "_REGISTERED_BYTES", 1 << 20)
    state, live = (
        {
            **make_state(seed),
            "averages": torch.randn(6 << 20, device=DEVICE),  # More than is copied without a wait.
            "columns": torch.randn(1500, 1200, device=DEVICE).T,
        }
        for seed in (1, 2)
    )
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    node.has_memory()
    for iteration in range(1, 8):
        step(state)
        checkpointer.save(iteration, state)
        if iteration == 4:
            checkpointer.flush(4)
            wait_until_registered(checkpointer)
    checkpointer.finish(state)
    checkpointer.close()
    node.begin(2, node.newest())
    again = Checkpointer(live, keeper=node.link(2), ahead=checkpointer.segment)
    assert again.load(live) == 7
    assert same(live, state)
    again.close()
