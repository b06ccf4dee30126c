"""Saves whose copies run beside training: begun after the optimizer's step, ended before the next one.

One save is under way at a time. A thread waits for its copies, then commits it. Invariant: between the beginning of a
save and the end of its copies, no optimizer steps (a hook of torch holds the device), and nothing else is saved.
"""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from everstep.runtime import faults
from everstep.runtime.checkpoint.shard.cuda_copies import CudaCopies
from everstep.runtime.checkpoint.shard.device_copies import Copying, CopyPlan, DeviceCopies
from everstep.runtime.checkpoint.shard.layout import Layout
from everstep.runtime.checkpoint.state.flatten import FlatState
from everstep.runtime.checkpoint.state.parts import local_part

_KINDS: dict[str, Callable[[torch.device], DeviceCopies]] = {"cuda": CudaCopies}
"""By the name that torch.accelerator gives a device. States on other devices are copied before `save` returns."""


def device_of(tree: FlatState) -> torch.device:
    """The device that has the state's tensors; the CPU if none is elsewhere."""
    return next((tensor.device for tensor in tree.tensors.values() if tensor.device.type != "cpu"), torch.device("cpu"))


def copies_from(device: torch.device) -> DeviceCopies | None:
    """The copies from that device; None if they cannot run beside training."""
    kind = _KINDS.get(device.type)
    return kind(device) if kind else None


class OverlappedSaves:
    """The saves of one state."""

    def __init__(self, copies: DeviceCopies) -> None:
        self._copies = copies
        self._thread = ThreadPoolExecutor(1, "everstep-commit")
        self._copying: Copying | None = None
        self._commit: Future[float] | None = None
        self._plan: tuple[object, CopyPlan] | None = None
        self._registered = set[int]()
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.hold())

    def begin(
        self,
        layout: Layout,
        slot: tuple[int, memoryview],
        state: Mapping[str, Any],
        tree: FlatState,
        json: bytes,
        commit: Callable[[], None],
    ) -> None:
        """Queue the copies of the state into the slot (its number and bytes); `commit` is called in a thread when they
        have ended. The save before must be finished."""
        assert self._commit is None, "the save before is finished"
        if self._plan is None or self._plan[0] is not tree.traversal:
            self._plan = tree.traversal, CopyPlan(layout, tree.tensors, stepped_names(state, tree, self._copies.device))
        number, buffer = slot
        began = time.perf_counter()
        copying = self._copying = self._plan[1].begin(buffer, tree, json, self._copies)
        self._commit = self._thread.submit(self._finish, copying, commit, number, buffer, began)

    def hold(self) -> None:
        """Called before an optimizer steps."""
        if self._copying is not None:
            self._copying.hold()
            self._copying = None

    def finish(self) -> float:
        """Wait until the save that is under way is committed. Returns the seconds that its copies took; 0: there is
        none. Raises what its copies or `commit` raised."""
        commit, self._commit = self._commit, None
        return commit.result() if commit is not None else 0.0

    def close(self) -> None:
        """Wait for the copies: afterwards nothing writes a slot."""
        self._hook.remove()
        with suppress(Exception):  # The round is over: nobody needs the save any more.
            self.finish()
        self._thread.shutdown()
        self._copies.unregister()

    def _finish(
        self, copying: Copying, commit: Callable[[], None], slot: int, buffer: memoryview, began: float
    ) -> float:
        """In the thread. Returns the seconds that the copies took."""
        copying.wait()
        seconds = time.perf_counter() - began
        faults.point("checkpoint.before_commit")
        commit()
        if slot not in self._registered:  # Beside the first iterations: training does not wait for it.
            self._registered.add(slot)
            self._register(buffer)
        return seconds

    def _register(self, buffer: memoryview) -> None:
        try:
            self._copies.register(buffer)
        except RuntimeError as error:
            print(f"everstep: saves take longer, as their memory is not pinned: {error}", file=sys.stderr)


def stepped_names(state: Mapping[str, Any], tree: FlatState, device: torch.device) -> set[str]:
    """The names of the tensors on that device that only the steps of optimizers in the state change."""
    memory = set[int]()
    for optimizer in state.values():
        if isinstance(optimizer, torch.optim.Optimizer):
            memory |= {_memory(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            values = (value for own in optimizer.state.values() for value in own.values())
            memory |= {_memory(value) for value in values if isinstance(value, torch.Tensor)}
    return {name for name, tensor in tree.tensors.items() if tensor.device == device and _memory(tensor) in memory}


def _memory(tensor: torch.Tensor) -> int:
    return local_part(tensor).untyped_storage().data_ptr()
