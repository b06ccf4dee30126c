"""Saves whose copies run beside training: begun after the optimizer's step, ended before the next one.

One save is under way at a time. A thread waits for its copies, then commits it. Invariants:
1. Between the beginning of a save and the end of its copies, no optimizer steps, and nothing else is saved. A hook of
   torch holds the device before the step. No hook is called when a CUDA graph with the step in it is replayed: where
   that may be, because a step was recorded, an optimizer is capturable or no step was seen since the last save, the
   copies have ended when the save returns.
2. A save is not committed if something else has changed a tensor while its copies ran, as far as torch counts changes
   (it does not count those by `tensor.data`).
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
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

_CHANGED = (
    "parameters were changed between a save and the optimizer's next step, so that save is not kept; from now on "
    "training waits for the copies of each save (change them before `save`)"
)
NOT_KEPT = (
    "iteration {0} was not kept, as something changed the parameters before its copy had ended; call "
    "save({0}, state, persist=True) before you change them, which waits for it"
)


_MOST_REFUSALS = 9
"""How often registering a slot is tried although it fails: a driver that always refuses would be asked in each save."""


def device_of(tree: FlatState) -> torch.device:
    """The device that has the state's tensors; the CPU if none is elsewhere."""
    return next((tensor.device for tensor in tree.tensors.values() if tensor.device.type != "cpu"), torch.device("cpu"))


def copies_from(device: torch.device) -> DeviceCopies | None:
    """The copies from that device; None if they cannot run beside training."""
    kind = _KINDS.get(device.type)
    return kind(device) if kind else None


@dataclass
class _Save:
    """The save that is under way."""

    copying: Copying
    sources: Sequence[torch.Tensor]
    versions: Sequence[int]
    """How often each source had been changed when the copies were queued."""
    is_sound: bool | None = None
    """Had nothing changed them when the next step was held, or the copies had ended? None: neither has happened."""

    def is_unchanged(self) -> bool:
        return _versions(self.sources) == self.versions


class OverlappedSaves:
    """The saves of one state."""

    def __init__(self, copies: DeviceCopies) -> None:
        self._copies = copies
        self._thread = ThreadPoolExecutor(1, "everstep-commit")
        self._registering_thread = ThreadPoolExecutor(1, "everstep-register")
        self._registrations: dict[int, Future[bool]] = {}
        """Of the slots that were written, by their numbers: the next save there waits for it, as a slot is not written
        meanwhile. Their results: was it possible?"""
        self._refusals = 0
        """How often it was not."""
        self._closes = threading.Event()
        self._save: _Save | None = None
        """Until the next step is held."""
        self._commit: Future[float] | None = None
        self._plan: tuple[object, CopyPlan] | None = None
        self._has_stepped = False
        """Has an optimizer stepped, as far as the hook knows, since the last save began?"""
        self._runs_beside = True
        """Is each step that may come held by the hook, and does nothing else change parameters?"""
        self.is_kept = True
        """Was the last save committed, unless it is still under way?"""
        # Compiled code would call what it has traced of the hook, and in an order of its own.
        before_step: Any = torch.compiler.disable(lambda *_: self._before_step())
        self._hook = register_optimizer_step_pre_hook(before_step)

    def begin(
        self,
        layout: Layout,
        slot: tuple[int, memoryview],
        state: Mapping[str, Any],
        tree: FlatState,
        json: bytes,
        commit: Callable[[], None],
        *,
        waits: bool = False,
    ) -> None:
        """Queue the copies of the state into the slot (its number and bytes); `commit` is called in a thread when they
        have ended. `waits`: return only then. The save before must be finished."""
        assert self._commit is None, "the save before is finished"
        if self._plan is None or self._plan[0] is not tree.traversal:
            device = self._copies.device
            plan = CopyPlan(layout, tree.tensors, stepped_names(state, tree, device), device)
            self._plan = tree.traversal, plan
        number, buffer = slot
        registration = self._registrations.get(number)
        if registration and not registration.result() and self._refusals < _MOST_REFUSALS:
            del self._registrations[number]  # As while a CUDA graph was captured: it is tried again.
        began, plan = time.perf_counter(), self._plan[1]
        sources = [tree.tensors[name] for name in plan.later]
        versions = _versions(sources)
        save = _Save(plan.begin(buffer, tree, json, self._copies), sources, versions)
        runs_beside = self._has_stepped and self._runs_beside and not waits and not _is_capturable(state)
        self._save, self._has_stepped, self.is_kept = save if runs_beside else None, False, True
        if not runs_beside:
            save.copying.wait()
            save.is_sound = True
        self._commit = self._thread.submit(self._finish, save, commit, number, buffer, began)

    def hold(self) -> None:
        """Called before an optimizer steps."""
        if self._save is not None:
            self._save.is_sound = self._save.is_unchanged()
            self._save.copying.hold()
            self._save = None

    def finish(self) -> float:
        """Wait until the save that is under way is committed. Returns the seconds that its copies took; 0: there is
        none. Raises what its copies or `commit` raised."""
        commit, self._commit = self._commit, None
        return commit.result() if commit is not None else 0.0

    def close(self) -> None:
        """Wait for the copies, also of a save whose beginning was interrupted: afterwards nothing writes a slot."""
        self._hook.remove()
        self._closes.set()
        with suppress(Exception):  # The round is over: nobody needs the save any more.
            self.finish()
        self._thread.shutdown()
        self._registering_thread.shutdown(cancel_futures=True)
        self._copies.wait()

    def _before_step(self) -> None:
        """The hook. What is recorded now is not done now: torch.cuda.graph has waited for the device."""
        if self._copies.is_recording():
            self._runs_beside = False
            if self._save is not None:  # Its copies have ended; what is recorded counts as a change, and is none.
                self._save.is_sound, self._save = self._save.is_unchanged(), None
        else:
            self._has_stepped = True
            self.hold()

    def _finish(self, save: _Save, commit: Callable[[], None], slot: int, buffer: memoryview, began: float) -> float:
        """In the thread. Returns the seconds that the copies took."""
        save.copying.wait()
        seconds = time.perf_counter() - began
        is_unchanged = save.is_unchanged()
        # In this order: a step changes them, too, but is held before.
        if not (is_unchanged if save.is_sound is None else save.is_sound):
            self._runs_beside = self.is_kept = False
            print(f"everstep: {_CHANGED}", file=sys.stderr)
            return seconds
        faults.point("checkpoint.before_commit")
        commit()
        if slot not in self._registrations:  # Beside the first iterations: the next save, in another slot, is not late.
            self._registrations[slot] = self._registering_thread.submit(self._register, buffer)
        return seconds

    def _register(self, buffer: memoryview) -> bool:
        try:
            self._copies.register(buffer, self._closes.is_set)
        except RuntimeError as error:
            self._refusals += 1
            print(f"everstep: saves take longer, as their memory is not pinned: {error}", file=sys.stderr)
            return False
        return True


def stepped_names(state: Mapping[str, Any], tree: FlatState, device: torch.device) -> set[str]:
    """The names of the tensors on that device that only the steps of optimizers in the state change."""
    memory = set[int]()
    for optimizer in _optimizers(state):
        memory |= {_memory(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        values = (value for own in optimizer.state.values() for value in own.values())
        memory |= {_memory(value) for value in values if isinstance(value, torch.Tensor)}
    return {name for name, tensor in tree.tensors.items() if tensor.device == device and _memory(tensor) in memory}


def _optimizers(state: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
    return [value for value in state.values() if isinstance(value, torch.optim.Optimizer)]


def _is_capturable(state: Mapping[str, Any]) -> bool:
    """May steps be in a CUDA graph that was captured before?"""
    return any(group.get("capturable") for optimizer in _optimizers(state) for group in optimizer.param_groups)


def _memory(tensor: torch.Tensor) -> int:
    return local_part(tensor).untyped_storage().data_ptr()


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]
