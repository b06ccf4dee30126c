"""Restores to a device, on one of threads: copies begin after what was queued there, and end in time."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.device_copies import Piece, Uploads
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.restore import load_shard, open_local_shard
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from tests.checkpoint.threaded_device import Stream, ThreadedDevice

KINDS = (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64)
SIZES = (0, 1, 7, 300, 40_000, BLOCK_BYTES // 4, 3 * BLOCK_BYTES // 8 + 5)
"""Elements: small ones, one of a block, some of several."""


class Recorder(ThreadedDevice):
    """Counts the pieces that it copied, and knows whether copies may still run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pieces = 0
        self.running = False

    def uploads(self) -> Uploads:
        return _Recording(self, super().uploads())


class _Recording:
    def __init__(self, recorder: Recorder, uploads: Uploads) -> None:
        self.recorder, self._uploads = recorder, uploads
        recorder.running = True

    def add(self, block: memoryview, pieces: Sequence[Piece]) -> None:
        self.recorder.pieces += len(pieces)
        self._uploads.add(block, pieces)

    def wait(self) -> None:
        self._uploads.wait()
        self.recorder.running = False


@contextmanager
def recording(seed: int = 0) -> Iterator[Recorder]:
    device = Recorder(seed)
    try:
        yield device
    finally:
        device.end()


def state_of(sizes: Sequence[int]) -> dict[str, torch.Tensor]:
    """Tensors of these sizes, of several types, one of them not contiguous."""
    torch.manual_seed(0)
    made = {f"t{n}": torch.randint(0, 2, (size,)).to(KINDS[n % len(KINDS)]) for n, size in enumerate(sizes)}
    return {**made, "scalar": torch.tensor(2.5), "columns": torch.randn(30, 4).T}


def staged(state: dict[str, torch.Tensor]) -> memoryview:
    tree = flatten(state)
    text = json_bytes({"iteration": 5, "state": tree.json})
    layout = plan_layout(tree.tensors, state_capacity(text))
    data = memoryview(bytearray(layout.size))
    Stager(layout, tree).stage(0, data, tree, text, 5)
    return data


def load(data: memoryview, live: dict[str, torch.Tensor], device: ThreadedDevice) -> int:
    tree = flatten(live)
    return load_shard(open_local_shard(data, tree), live, tree, copies=device)


def garbled(saved: dict[str, torch.Tensor], device: ThreadedDevice) -> dict[str, torch.Tensor]:
    """A state whose first values are still queued on the device."""
    live = {name: torch.empty_like(tensor) for name, tensor in saved.items()}
    for tensor in live.values():
        device.compute.queue(partial(_fill, tensor))
    return live


def _fill(tensor: torch.Tensor) -> None:
    tensor.fill_(1)


@settings(deadline=None, max_examples=25)
@given(sizes=st.lists(st.sampled_from(SIZES), max_size=9), seed=st.integers(0, 999))
def test_a_state_on_the_device_is_restored_bit_for_bit_after_what_was_queued_there(sizes: list[int], seed: int) -> None:
    saved = state_of(sizes)
    data = staged(saved)
    with recording(seed) as device:
        live = garbled(saved, device)
        assert load(data, live, device) == 5
        assert not device.running
        assert all(torch.equal(live[name], tensor) for name, tensor in saved.items())
        assert device.pieces >= sum(size > 0 for size in sizes)


def test_the_copies_end_before_the_error_of_one_that_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = state_of(SIZES)
    data, added = staged(saved), _Recording.add

    def fail(self: _Recording, block: memoryview, pieces: Sequence[Piece]) -> None:
        added(self, block, pieces)
        if self.recorder.pieces > 2:
            raise RuntimeError("no room for pinned memory")

    monkeypatch.setattr(_Recording, "add", fail)
    with recording() as device:
        with pytest.raises(RuntimeError, match="no room for pinned memory"):
            load(data, garbled(saved, device), device)
        assert device.pieces > 2
        assert not device.running


def test_the_property_finds_a_device_that_copies_before_what_was_queued_there(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = state_of(SIZES)
    data = staged(saved)
    wait_for = Stream.wait_for
    monkeypatch.setattr("tests.checkpoint.threaded_device.Stream.wait_for", lambda self, event: None)
    with recording() as device:
        behind = threading.Event()  # What was queued there is not done before the copies are.
        wait_for(device.compute, behind)
        live = garbled(saved, device)
        load(data, live, device)
        behind.set()
        assert device.compute.record().wait(30)
        assert not all(torch.equal(live[name], tensor) for name, tensor in saved.items())


def test_a_checkpointer_restores_by_its_device(
    node: Any, make_state: Callable[[int], dict[str, Any]], same: Any
) -> None:
    saved, live = make_state(3), make_state(1)
    node.begin(1)
    checkpointer = Checkpointer(saved, keeper=node.link())
    checkpointer.save(4, saved)
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    with recording() as device:
        again = Checkpointer(live, keeper=node.link(2), copies=lambda _: device)
        assert again.load(live) == 4
        again.close()
        assert device.pieces
    assert same(live, saved)
