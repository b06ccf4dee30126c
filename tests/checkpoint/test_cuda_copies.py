"""The copies from and to a CUDA device, on a stand-in: what they call, in which order, on which device."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.shard.cuda_copies import CudaCopies
from everstep.runtime.checkpoint.shard.device_copies import Gather, Piece
from everstep.runtime.checkpoint.worker import overlapped_saves
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from tests.checkpoint import test_cuda
from tests.checkpoint.cuda_stand_in import StandIn, stand_in

ON_A_DEVICE = [test for name, test in vars(test_cuda).items() if name.startswith("test_")]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(overlapped_saves, "_KINDS", {"cpu": CudaCopies})
    monkeypatch.setattr(test_cuda, "DEVICE", "cpu")
    monkeypatch.setattr(test_cuda, "WIDTH", 600)
    return stand_in(monkeypatch)


@pytest.mark.parametrize("test", ON_A_DEVICE, ids=lambda test: test.__name__)
def test_what_a_device_is_tested_with_passes_and_no_thread_makes_a_context_on_another_one(
    test: Callable[..., None], stand: StandIn, request: pytest.FixtureRequest
) -> None:
    wanted = {name: request.getfixturevalue(name) for name in ("node", "same") if name in test.__annotations__}
    test(**wanted)
    assert stand.contexts == {stand.own}
    assert not stand.registered


def test_copies_wait_for_training_and_training_waits_for_the_copies(stand: StandIn) -> None:
    large, small, slot = torch.arange(9.0), [torch.ones(2), torch.full((1,), 3.0)], torch.zeros(21, dtype=torch.float32)
    copying = CudaCopies(torch.device("cpu")).begin(
        [(slot[:9], large)], [Gather(slot[9:12].view(torch.uint8), [0, 8], small)]
    )
    copying.hold()
    copying.wait()
    assert slot[:12].tolist() == [*range(9), 1.0, 1.0, 3.0]
    begun, ended = ["training records", "copies waits"], ["copies records", "training waits"]
    assert stand.log == [*begun, *["copies uses"] * 3, *ended]


def test_memory_is_unregistered_when_all_copies_have_ended(stand: StandIn) -> None:
    copies, slot = CudaCopies(torch.device("cpu")), bytearray(4096)
    copies.register(memoryview(slot))
    copies.begin([(torch.frombuffer(slot, dtype=torch.uint8), torch.ones(4096, dtype=torch.uint8))], [])
    copies.unregister()
    assert stand.log[-2:] == ["copies ends", "unregistered"]


def test_a_step_that_is_captured_is_no_step_and_later_saves_end_before_they_return(
    stand: StandIn, node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    state = make_state(1)
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link())
    overlapped = checkpointer._overlapped
    assert overlapped is not None
    held = []
    for iteration, captures in enumerate((False, True, False), start=1):
        stand.captures = captures
        state["optimizer"].step()
        stand.captures = False
        checkpointer.save(iteration, state)
        held.append(overlapped._save is not None)
    checkpointer.close()
    assert held == [True, False, False]


def test_memory_that_cannot_be_registered_is_told_in_cudas_words(stand: StandIn) -> None:
    stand.refusal = 2
    with pytest.raises(RuntimeError, match=r"cudaHostRegister of 0.1 MB: out of memory \(2\)"):
        CudaCopies(torch.device("cpu")).register(memoryview(bytearray(100_000)))
    assert not stand.registered


def test_a_block_with_small_and_large_pieces_goes_to_its_tensors(stand: StandIn) -> None:
    block = torch.arange(200_000, dtype=torch.int64).view(torch.uint8)
    targets = [torch.zeros(size, dtype=torch.uint8) for size in (100, 80_000, 3)]
    uploads = CudaCopies(torch.device("cpu")).uploads()
    pieces = [Piece(offset, target) for offset, target in zip((0, 104, 90_000), targets, strict=True)]
    uploads.add(memoryview(block.numpy().data), pieces)
    uploads.wait()
    assert all(torch.equal(target, block[offset : offset + len(target)]) for offset, target in pieces)


@pytest.mark.parametrize(("cores", "devices", "threads"), [(16, 1, 16), (96, 8, 12), (2, 8, 1), (200, 1, 16)])
def test_a_restore_uses_a_workers_share_of_the_cores_whatever_number_of_threads_torch_has(
    cores: int, devices: int, threads: int, stand: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.count = devices
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert CudaCopies(torch.device("cpu")).upload_threads == threads
