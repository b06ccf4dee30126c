"""Saves whose copies run beside training: begun after the optimizer's step, ended before the next one.

One save is under way at a time. A thread waits for its copies, then commits it. Invariants:
1. Between the beginning of a save and the end of its copies, no optimizer steps that changes a tensor of the state, and
   nothing else is saved. A hook of torch holds the device before each such step, on the stream of the step. No hook is
   called when a CUDA graph with the step in it is replayed: where that may be, because a step was recorded, an
   optimizer is capturable or one of the state's was not seen to step since the last save, the copies have ended when
   the save returns.
2. A save is not committed if something else has changed a tensor while its copies ran, as far as torch counts changes
   (it does not count those by `tensor.data`).
"""

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

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
_REGISTERED = (
    "everstep: registered {0:.2f} GB of shared memory with the device in {1:.2f} s, beside training; each of the other "
    "slots takes as long"
)
_MOST_REFUSALS = 9
"""How often registering a slot is tried although it fails: a driver that always refuses would be asked in each save."""

_closing_events = WeakSet[threading.Event]()
"""Of those whose memory may be being registered."""


def _close_all() -> None:
    for event in list(_closing_events):
        event.set()


# At its end the interpreter waits for all that an executor was given, after it has called these.
with suppress(RuntimeError):  # It ends already.
    threading._register_atexit(_close_all)  # pyright: ignore[reportAttributeAccessIssue]


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
    unheld: dict[str, tuple[torch.Tensor, int]]
    """The sources that no step may change yet, by name, and how often each had been changed when the copies were
    queued."""
    _has_ended: bool = False
    _is_sound: bool = True
    """Had nothing changed a source when a step that changes it was held, or when the copies had ended?"""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self, names: Collection[str]) -> bool:
        """Call it before a step that changes these sources. Returns whether copies may still run."""
        with self._lock:
            if not self._has_ended:
                sources = [self.unheld.pop(name) for name in names if name in self.unheld]
                self._is_sound &= _are_unchanged(sources)
            return not self._has_ended

    def end(self) -> bool:
        """Call it when the copies have ended. Returns whether nothing but steps that were held had changed a source."""
        with self._lock:
            if not self._has_ended:  # Steps that come later are not held.
                self._has_ended = True
                self._is_sound &= _are_unchanged(self.unheld.values())
            return self._is_sound


@dataclass
class _Plan:
    """It holds for all states of one traversal."""

    traversal: object
    copies: CopyPlan
    names_by_memory: Mapping[int, Sequence[str]]
    """Of the tensors whose copies are queued."""
    _names: WeakKeyDictionary[torch.optim.Optimizer, frozenset[str]] = field(default_factory=WeakKeyDictionary)

    @classmethod
    def of(cls, layout: Layout, state: Mapping[str, Any], tree: FlatState, device: torch.device) -> "_Plan":
        copies = CopyPlan(layout, tree.tensors, stepped_names(state, tree, device), device)
        names = defaultdict[int, list[str]](list)
        for name in copies.later:
            names[_memory(tree.tensors[name])].append(name)
        return cls(tree.traversal, copies, names)

    def names_of(self, optimizer: torch.optim.Optimizer) -> Collection[str]:
        """Which of these tensors its steps change; none of an optimizer that shares nothing with the state."""
        names = self._names.get(optimizer)
        if names is None:
            lists = (self.names_by_memory.get(memory, ()) for memory in _memories(optimizer))
            names = self._names[optimizer] = frozenset(chain.from_iterable(lists))
        return names


class Ended(NamedTuple):
    """What is known when a save has ended. Seconds of the device."""

    copy_s: float = 0.0
    """How long its copies took; what had to be computed before does not count."""
    held_s: float = 0.0
    """How long steps waited for copies: of all saves of which it was not told before. The device tells it once it has
    got there, which may be a save later."""


class OverlappedSaves:
    """The saves of one state."""

    def __init__(self, copies: DeviceCopies, tells: bool = True) -> None:
        """`tells`: say what registering the first slot cost."""
        self._copies, self._tells = copies, tells
        self._thread = ThreadPoolExecutor(1, "everstep-commit")
        self._registering_thread = ThreadPoolExecutor(1, "everstep-register")
        self._registrations: dict[int, Future[bool]] = {}
        """Of the slots that were written, by their numbers: the next save there waits for it, as a slot is not written
        meanwhile. Their results: was it possible?"""
        self._refusals = 0
        """How often it was not."""
        self._closes = threading.Event()
        _closing_events.add(self._closes)
        self._save: _Save | None = None
        """Whose copies may still run."""
        self._holding: list[Copying] = []
        """Those whose `held_s` was not told."""
        self._commit: Future[float] | None = None
        self._plan: _Plan | None = None
        self._stepped = WeakSet[torch.optim.Optimizer]()
        """Those whose steps the hook has seen since the last save began."""
        self._runs_beside = True
        """Is each step that may come held by the hook, and does nothing else change parameters?"""
        self.is_kept = True
        """Was the last save committed, unless it is still under way?"""
        self.is_typical = False
        """Will later saves take as long as the last one? It was not the first one into its slot, and did not wait until
        that was registered."""
        self._pid = os.getpid()
        self._hook = register_optimizer_step_pre_hook(_hook_of(ref(self)))

    def begin(
        self,
        layout: Layout,
        slot: tuple[int, memoryview],
        state: Mapping[str, Any],
        tree: FlatState,
        json: bytes,
        commit: Callable[[], None],
        *,
        iteration: int,
        waits: bool = False,
    ) -> None:
        """Queue the copies of the state into the slot (its number and bytes); `commit` is called in a thread when they
        have ended. `waits`: return only then. The save before must be finished."""
        assert self._commit is None, "the save before is finished"
        plan = self._plan
        if plan is None or plan.traversal is not tree.traversal:
            plan = self._plan = _Plan.of(layout, state, tree, self._copies.device)
        number, buffer = slot
        registration = self._registrations.get(number)
        self.is_typical = registration is not None and registration.done()
        if registration and not registration.result() and self._refusals < _MOST_REFUSALS:
            del self._registrations[number]  # As while a CUDA graph was captured: it is tried again.
        sources = {name: (tree.tensors[name], _version(tree.tensors[name])) for name in plan.copies.later}
        save = _Save(plan.copies.begin(buffer, tree, json, self._copies, iteration), sources)
        runs_beside = self._have_all_stepped(state) and self._runs_beside and not waits and not _is_capturable(state)
        self._save, self.is_kept = save if runs_beside else None, True
        self._stepped.clear()
        if runs_beside:
            self._holding.append(save.copying)
        else:
            save.copying.wait()
            save.end()
        self._commit = self._thread.submit(self._finish, save, commit, number, buffer, iteration)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before it steps."""
        if self._save is None or self._plan is None:
            return
        names = self._plan.names_of(optimizer)
        if names and self._save.release(names):
            self._save.copying.hold()

    def finish(self) -> Ended:
        """Wait until the save that is under way is committed. Raises what its copies or `commit` raised."""
        commit, self._commit = self._commit, None
        copy_s = commit.result() if commit is not None else 0.0
        holds = [(copying, copying.held_s()) for copying in self._holding]
        self._holding = [copying for copying, held_s in holds if held_s is None]
        return Ended(copy_s, sum(held_s for _, held_s in holds if held_s is not None))

    def close(self) -> None:
        """Wait for the copies, also of a save whose beginning was interrupted: afterwards nothing writes a slot."""
        self._hook.remove()
        self._closes.set()
        with suppress(Exception):  # The round is over: nobody needs the save any more.
            self.finish()
        self._thread.shutdown()
        self._registering_thread.shutdown(cancel_futures=True)
        self._copies.wait()

    def _have_all_stepped(self, state: Mapping[str, Any]) -> bool:
        """Has the hook seen a step of each optimizer of the state, itself or within what wraps it?"""
        seen = {id(optimizer.param_groups) for optimizer in self._stepped}
        own = {id(optimizer.param_groups) for optimizer in _optimizers(state)}
        return bool(own) and own <= seen

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The hook. What is recorded now is not done now: torch.cuda.graph has waited for the device. A process
        that was forked has tensors of its own, and must ask CUDA nothing."""
        if os.getpid() != self._pid:
            return
        if self._copies.is_recording():
            self._runs_beside = False
            if self._save is not None:  # Its copies have ended; what is recorded counts as a change, and is none.
                self._save.release(list(self._save.unheld))
        else:
            self._stepped.add(optimizer)
            self.hold(optimizer)

    def _finish(self, save: _Save, commit: Callable[[], None], slot: int, buffer: memoryview, iteration: int) -> float:
        """In the thread. Returns the seconds that the copies took."""
        save.copying.wait()
        faults.point("checkpoint.after_copy", iteration=iteration)
        copy_s = save.copying.copy_s()
        if not save.end():
            self._runs_beside = self.is_kept = False
            print(f"everstep: {_CHANGED}", file=sys.stderr)
            return copy_s
        faults.point("checkpoint.before_commit", iteration=iteration)
        commit()
        faults.point("checkpoint.after_commit", iteration=iteration)
        if slot not in self._registrations:  # Beside the first iterations: the next save, in another slot, is not late.
            self._registrations[slot] = self._registering_thread.submit(self._register, buffer)
        return copy_s

    def _register(self, buffer: memoryview) -> bool:
        began = time.perf_counter()
        try:
            is_new = self._copies.register(buffer, self._closes.is_set)
        except RuntimeError as error:
            self._refusals += 1
            print(f"everstep: saves take longer, as their memory is not pinned: {error}", file=sys.stderr)
            return False
        if is_new and self._tells:
            self._tells = False
            print(_REGISTERED.format(len(buffer) / 1e9, time.perf_counter() - began), file=sys.stderr)
        return True


def _hook_of(saves: ref[OverlappedSaves]) -> Any:
    """The hook keeps neither the saves nor their memory: nobody closes those of a Checkpointer that a round's end has
    interrupted while it was made."""

    def before_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if (live := saves()) is not None:
            live._before_step(optimizer)

    # Compiled code would call what it has traced of the hook, and in an order of its own.
    return torch.compiler.disable(before_step)


def stepped_names(state: Mapping[str, Any], tree: FlatState, device: torch.device) -> set[str]:
    """The names of the tensors on that device that only the steps of optimizers in the state change."""
    memories = set[int]().union(*map(_memories, _optimizers(state)))
    return {name for name, tensor in tree.tensors.items() if tensor.device == device and _memory(tensor) in memories}


def _optimizers(state: Mapping[str, Any]) -> list[torch.optim.Optimizer]:
    return [value for value in state.values() if isinstance(value, torch.optim.Optimizer)]


def _is_capturable(state: Mapping[str, Any]) -> bool:
    """May steps be in a CUDA graph that was captured before?"""
    return any(group.get("capturable") for optimizer in _optimizers(state) for group in optimizer.param_groups)


def _memory(tensor: torch.Tensor) -> int:
    return local_part(tensor).untyped_storage().data_ptr()


def _memories(optimizer: torch.optim.Optimizer) -> set[int]:
    """The memory that its steps change, as far as it can be in a state: any optimizer of the process may be asked for
    it, also one whose tensors have none of their own."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    values = (value for own in optimizer.state.values() if isinstance(own, Mapping) for value in own.values())
    memories = set[int]()
    for tensor in (value for value in chain(parameters, values) if isinstance(value, torch.Tensor)):
        with suppress(RuntimeError):
            memories.add(_memory(tensor))
    return memories


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _are_unchanged(sources: Collection[tuple[torch.Tensor, int]]) -> bool:
    return all(_version(tensor) == version for tensor, version in sources)
