"""Copies that run beside training, on a device of threads: each shard is of one moment, whenever it is looked at."""

import gc
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.optimizer import _global_optimizer_pre_hooks

from everstep import checkpoints
from everstep.runtime.checkpoint.errors import AbortedError
from everstep.runtime.checkpoint.shard import device_copies
from everstep.runtime.checkpoint.shard.device_copies import CopyPlan
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.state import stateful
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.worker import overlapped_saves
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.checkpoint.worker.overlapped_saves import OverlappedSaves, _memory, _Plan, _Save, stepped_names
from everstep.runtime.checkpoint.worker.staging_interval import StagingInterval
from everstep.session import Context, RoundOver, Session
from tests.checkpoint.threaded_device import Stream, ThreadedDevice
from tests.forks import Forks
from tests.harness import wait_until

SIZES = (3, 5, 20_000, 7, 1, 40_000, 2)
"""Elements of the parameters: small ones side by side, and large ones."""


class Optimizer(torch.optim.Optimizer):
    """Sets every parameter to the number of its steps, as work that is queued on the device, element by element."""

    def __init__(self, parameters: Any, device: ThreadedDevice) -> None:
        super().__init__(parameters, {})
        self._device, self.steps = device, 0

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                self._device.current.queue(lambda parameter=parameter, value=self.steps: parameter.data.fill_(value))


class Training:
    """A state on the device, its saves, and the shards that were committed: (iteration, bytes)."""

    def __init__(self, device: ThreadedDevice) -> None:
        self.device = device
        self.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
        self.optimizer = Optimizer(self.parameters, device)
        self.state = {"weights": dict(enumerate(self.parameters)), "optimizer": self.optimizer, "seen": torch.zeros(4)}
        tree = flatten(self.state)
        self.layout = plan_layout(tree.tensors, state_capacity(b"{}"), tree.parts())
        self.slots = [memoryview(bytearray(self.layout.size)) for _ in range(2)]
        self.committed: list[tuple[int, int]] = []
        self.torn: list[str] = []
        self.iteration = 0
        self.saves = OverlappedSaves(device)

    def step(self) -> None:
        """An iteration: the forward pass changes `seen` at once, the optimizer queues its work."""
        self.iteration += 1
        self.state["seen"].fill_(self.iteration)
        self.optimizer.step()

    def replay(self) -> None:
        """An iteration whose step is in a CUDA graph: torch calls no hook."""
        self.iteration += 1
        self.state["seen"].fill_(self.iteration)
        Optimizer.step.__wrapped__(self.optimizer)  # pyright: ignore[reportFunctionMemberAccess]

    def capture(self) -> None:
        """Record the step in a graph, as torch.cuda.graph does, which waits for the device first."""
        self.device.wait_for_all()
        self.device.records, before = True, self.optimizer.steps
        with patch.object(self.device.compute, "queue"):
            self.optimizer.step()
        self.device.records, self.optimizer.steps = False, before

    def prepare(self) -> None:
        """As each load does with an optimizer that keeps nothing, as SGD."""
        before = self.optimizer.steps
        with patch.object(stateful, "_check_starts_from_zero"):
            stateful.prepare_optimizer(self.optimizer, "optimizer")
        self.optimizer.steps = before

    def step_in_a_fork(self) -> None:
        """A process that was forked steps; its tensors are its own, and CUDA refuses to be asked anything there."""
        before, in_the_child = self.optimizer.steps, patch.object(os, "getpid", lambda: 1)
        refusing = patch.object(self.device, "is_recording", side_effect=RuntimeError("Cannot re-initialize CUDA"))
        with in_the_child, refusing, patch.object(self.device.compute, "queue"):
            self.optimizer.step()
        self.optimizer.steps = before

    def replace(self) -> None:
        """The script makes another Checkpointer, which closes this one."""
        self.saves.close()
        self.saves = OverlappedSaves(self.device)

    def save(self) -> None:
        """Save into the slot that is not the newest."""
        self.saves.finish()
        tree, iteration = flatten(self.state), self.iteration
        slot = len(self.committed) % 2
        self.saves.begin(
            self.layout,
            (slot, self.slots[slot]),
            self.state,
            tree,
            json_bytes({}),
            lambda: self._commit(slot, iteration),
            iteration=iteration,
        )

    def _commit(self, slot: int, iteration: int) -> None:
        self._look(slot, iteration)
        self.committed.append((slot, iteration))

    def look(self) -> None:
        """What a restore would find if the process were killed now."""
        if self.committed:
            self._look(*self.committed[-1])

    def _look(self, slot: int, iteration: int) -> None:
        for name, place in self.layout.tensors.items():
            values = set(place.view(self.slots[slot]).unique().tolist())
            if values != {float(iteration)}:
                self.torn.append(f"{name} of iteration {iteration} has {values}")


class TwoOptimizers(Training):
    """Its second optimizer steps as the first one, on a stream of its own, or in a CUDA graph."""

    def __init__(self, device: ThreadedDevice) -> None:
        super().__init__(device)
        self.optimizer, self.second = (Optimizer(half, device) for half in (self.parameters[:3], self.parameters[3:]))
        self.state |= {"optimizer": self.optimizer, "second": self.second}
        self.way, self.other = "alike", Stream(random.Random(9))

    def step(self) -> None:
        super().step()
        if self.way == "in a graph":
            Optimizer.step.__wrapped__(self.second)  # pyright: ignore[reportFunctionMemberAccess]
        elif self.way == "on another stream":
            with self.device.on(self.other):
                self.second.step()
            self.device.compute.wait_for(self.other.record())
        else:
            self.second.step()


@contextmanager
def training(seed: int, kind: type[Training] = Training) -> Iterator[Any]:
    device = ThreadedDevice(seed)
    run = kind(device)
    try:
        yield run
    finally:
        run.saves.close()
        device.end()


@settings(deadline=None)
@given(
    actions=st.lists(
        st.sampled_from(["step", "save", "look", "prepare", "step_in_a_fork", "replace"]), min_size=1, max_size=14
    ),
    seed=st.integers(0, 999),
)
def test_a_committed_shard_is_of_one_moment_whatever_is_queued_and_whenever_it_is_killed(
    actions: list[str], seed: int
) -> None:
    with training(seed) as run:
        run.step()
        for action in actions:
            getattr(run, action)()
        run.save()
        run.saves.finish()
        run.look()
        assert run.torn == []
        assert run.committed[-1][1] == run.iteration


@settings(deadline=None)
@given(
    before=st.lists(st.sampled_from(["step", "save"]), max_size=4),
    after=st.lists(
        st.sampled_from(["step", "replay", "save", "look", "prepare", "step_in_a_fork"]), min_size=1, max_size=10
    ),
    seed=st.integers(0, 999),
)
def test_a_committed_shard_is_of_one_moment_where_steps_are_in_a_graph_too(
    before: list[str], after: list[str], seed: int
) -> None:
    with training(seed) as run:
        for action in ["step", *before, "capture", *after, "save"]:
            getattr(run, action)()
        run.saves.finish()
        run.look()
        assert run.torn == []
        assert run.committed[-1][1] == run.iteration


@settings(deadline=None)
@given(
    after=st.lists(st.sampled_from(["replay", "prepare", "save", "look", "replace"]), min_size=1, max_size=10),
    seed=st.integers(0, 999),
)
def test_a_committed_shard_is_of_one_moment_where_the_graph_is_older_than_the_checkpointer(
    after: list[str], seed: int
) -> None:
    with training(seed) as run:
        for action in ["replay", *after, "save"]:
            getattr(run, action)()
        run.saves.finish()
        run.look()
        assert run.torn == []
        assert run.committed[-1][1] == run.iteration


@pytest.mark.parametrize("is_capturable", [False, True])
def test_copies_end_before_a_save_returns_where_the_next_step_may_be_in_an_earlier_graph(is_capturable: bool) -> None:
    with training(0) as run:
        run.optimizer.param_groups[0]["capturable"] = is_capturable
        for iterate in [run.step if is_capturable else run.replay, run.replay] * 20:
            iterate()
            run.save()
            if is_capturable or run.iteration > 1:
                assert run.saves._save is None, "no hook will hold it"
        run.saves.finish()
        assert run.torn == []


@pytest.mark.parametrize("way", ["alike", "on another stream", "in a graph"])
def test_every_optimizer_of_the_state_is_held_or_the_copies_end_before_the_save_returns(way: str) -> None:
    with training(0, TwoOptimizers) as run:
        run.way = way
        for _ in range(50):
            run.step()
            run.save()
            assert (run.saves._save is None) == (way == "in a graph"), "no hook would hold the second one"
        run.saves.finish()
        assert run.torn == []
        run.other.end()


def test_a_step_of_an_optimizer_that_is_not_in_the_state_neither_counts_nor_ends_the_hold_of_one_that_is() -> None:
    with training(0) as run:
        parameter, other = torch.nn.Parameter(torch.zeros(3)), Stream(random.Random(9))
        outside = Optimizer([parameter], run.device)
        exotic: Any = {parameter: {"sparse": torch.eye(2).to_sparse()}, "count": 3}
        outside.state = defaultdict(dict, exotic)
        for _ in range(50):
            run.step()
            run.save()
            assert run.saves._save is not None
            with run.device.on(other):
                outside.step()
        run.saves.finish()
        run.replay()
        run.save()
        assert run.saves._save is None, "no hook has seen the state's own step"
        run.saves.finish()
        assert run.torn == []
        other.end()


def test_a_step_within_an_optimizer_that_wraps_another_one_counts_as_its_own() -> None:
    class Wrapper(torch.optim.Optimizer):
        """As Accelerate's."""

        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        @property
        def param_groups(self) -> Any:
            return self.inner.param_groups

        @property
        def state(self) -> Any:
            return self.inner.state

        def state_dict(self) -> Any:
            return self.inner.state_dict()

    with training(0) as run:
        run.state["optimizer"] = Wrapper(run.optimizer)
        for _ in range(50):
            run.step()
            run.save()
            assert run.saves._save is not None
        run.saves.finish()
        assert run.torn == []


def test_a_change_between_the_steps_of_two_optimizers_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    with training(0, TwoOptimizers) as run:
        run.step()
        release = threading.Event()
        run.device.compute.wait_for(release)  # The copies cannot begin.
        run.save()
        run.optimizer.step()
        with torch.no_grad():
            run.parameters[-1].add_(7.0)
        run.second.step()
        release.set()
        run.saves.finish()
        assert run.committed == []
        assert capsys.readouterr().err.count("that save is not kept") == 1
        run.other.end()


def test_a_step_that_comes_while_the_end_of_the_copies_is_noted_is_no_change_of_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare, compares, has_stepped = overlapped_saves._are_unchanged, threading.Event(), threading.Event()

    def compare_slowly(sources: Any) -> bool:
        if threading.current_thread() is not threading.main_thread():
            compares.set()
            has_stepped.wait(0.1)
        return compare(sources)

    monkeypatch.setattr(overlapped_saves, "_are_unchanged", compare_slowly)
    with training(0) as run:
        run.step()
        run.save()
        assert compares.wait(30.0)
        run.step()
        with torch.no_grad():
            run.parameters[2].add_(7.0)  # What a step does.
        has_stepped.set()
        run.saves.finish()
        assert [iteration for _, iteration in run.committed] == [1]


@pytest.mark.parametrize("refuses", [False, True])
def test_the_first_save_into_a_slot_is_not_typical_and_later_ones_are_even_if_it_cannot_be_registered(
    refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise RuntimeError("no more memory can be locked")

    def save(run: Training) -> bool:
        run.step()
        run.save()
        run.saves.finish()
        for registration in run.saves._registrations.values():
            registration.result()
        return run.saves.is_typical

    with training(0) as run:
        if refuses:
            monkeypatch.setattr(run.device, "register", refuse)
        assert [save(run) for _ in range(6)] == [False] * 2 + [True] * 4


def test_a_save_that_waits_until_its_slot_is_registered_is_not_typical() -> None:
    class Late(Future[bool]):
        """Ends when it is waited for."""

        def result(self, timeout: float | None = None) -> bool:
            self.set_result(True)
            return super().result(timeout)

    with training(0) as run:
        run.saves._registrations[0] = Late()
        run.step()
        run.save()
        assert not run.saves.is_typical
        run.saves.finish()


def test_what_saves_cost_that_are_not_typical_is_no_cost_of_staging(
    node: Any, make_state: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def note(*given: Any) -> bool:
        told.append(given[-1])
        return False

    monkeypatch.setattr(StagingInterval, "record_save", note)
    device, state = ThreadedDevice(3, trains_here=True), make_state(1)
    node.begin(1)
    beside = Checkpointer(state, keeper=node.link(), copies=lambda _: device)
    node.has_memory()
    assert beside._overlapped is not None
    for iteration in range(1, 7):
        beside.save(iteration, state)
        beside.flush(iteration)
        for registration in beside._overlapped._registrations.values():
            registration.result()
    beside.close()
    device.end()
    assert told == [False] * 3 + [True] * 3
    Checkpointer(state, keeper=node.link()).save(7, state)
    assert told[-1], "as copies do not run beside training"


def test_saves_that_nobody_has_any_more_hold_steps_until_their_copies_have_ended_and_are_gone() -> None:
    device = ThreadedDevice(0)
    run = Training(device)
    run.step()
    release = threading.Event()
    device.compute.wait_for(release)  # The copies cannot begin.
    run.save()
    saves = ref(run.saves)
    del run.saves
    gc.collect()
    run.step()
    assert len(device.holds) == 1
    release.set()
    wait_until(lambda: gc.collect() >= 0 and saves() is None, "the saves are gone")
    assert [iteration for _, iteration in run.committed] == [1]
    assert run.torn == []
    run.step()
    assert len(device.holds) == 1
    device.end()


def test_a_second_checkpointer_of_a_round_closes_the_first_and_goes_on_with_its_memory(
    node: Any, make_state: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, state = ThreadedDevice(3, trains_here=True), make_state(1)
    monkeypatch.setattr(overlapped_saves, "_KINDS", {"cpu": lambda _: device})
    node.begin(1)
    session = Session(Context(0, 1, 0, torch.device("cpu"), 1, node.link()))
    kept = cast(Any, SimpleNamespace(session=session, alone=None))
    before = len(_global_optimizer_pre_hooks)
    first = checkpoints.Checkpointer(state, kept)
    first.save(1, state)
    second = checkpoints.Checkpointer(state, kept)
    assert node.newest().iteration == 1
    assert len(_global_optimizer_pre_hooks) == before + 1
    assert second.segment is first.segment
    second.save(2, state)
    second.flush(2)
    assert node.newest().iteration == 2
    session.close_checkpointer()
    assert len(_global_optimizer_pre_hooks) == before
    device.end()


def test_the_end_of_a_script_does_not_wait_until_all_its_memory_is_registered(forks: Forks, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert forks.run(["-m", "tests.checkpoint.registering_script"], {}, log) == 3, log.read_text()
    assert log.read_text().splitlines() == ["registration was cancelled"] * 2


def test_the_cost_of_registering_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with training(0) as run:
        for _ in range(4):
            run.step()
            run.save()
        run.saves.finish()
        for registration in run.saves._registrations.values():
            registration.result()
        assert len(run.device.registered) == 2
        assert capsys.readouterr().err.count("registered 0.00 GB of shared memory with the device in 0.") == 1


def test_a_slot_is_registered_beside_training_and_only_the_next_save_there_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with training(0) as run:
        events, release, begin = list[str](), threading.Event(), run.device.begin

        def register(*_: object) -> None:
            assert release.wait(30.0)
            events.append("registered")

        def note_begin(*given: Any) -> Any:
            events.append("begun")
            return begin(*given)

        monkeypatch.setattr(run.device, "register", register)
        monkeypatch.setattr(run.device, "begin", note_begin)
        for _ in range(2):
            run.step()
            run.save()
        run.saves.finish()
        assert events == ["begun"] * 2
        threading.Timer(0.05, release.set).start()
        run.step()
        run.save()  # Into the first slot again.
        assert events[:3] == ["begun", "begun", "registered"]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_save_whose_parameters_something_else_changes_meanwhile_is_not_kept_and_the_next_ones_wait(
    is_early: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with training(0) as run:
        run.step()
        run.save()
        run.step()
        release = threading.Event()
        run.device.compute.wait_for(release)  # The copies cannot begin.
        run.save()
        with torch.no_grad():
            run.parameters[2].add_(7.0)  # As weights are swapped for an evaluation.
        if not is_early:
            run.step()
        release.set()
        run.saves.finish()
        assert [iteration for _, iteration in run.committed] == [1]
        assert capsys.readouterr().err.count("that save is not kept") == 1
        then = run.iteration
        for _ in range(3):
            run.step()
            run.save()
            with torch.no_grad():
                run.parameters[2].add_(7.0)
        run.saves.finish()
        assert [iteration - then for _, iteration in run.committed[1:]] == [1, 2, 3]
        assert run.torn == []


def test_a_compiled_step_is_held_before_it_runs_and_not_by_what_was_compiled_of_the_hook() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    device = ThreadedDevice(0)
    saves = OverlappedSaves(device)
    saves._plan = _Plan(None, cast(Any, None), {_memory(parameter): ["parameter"]})
    seen: list[tuple[bool, float]] = []

    class Copies:
        def hold(self) -> None:
            seen.append((torch.compiler.is_compiling(), parameter[0].item()))

    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        saves._save = _Save(cast(Any, Copies()), {})
        step()
    assert seen == [(False, 1.0), (False, 0.0), (False, -1.0)]
    saves.close()
    device.end()


def test_nothing_is_copied_after_the_end_of_a_round_that_interrupted_the_beginning_of_a_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with training(0) as run:
        run.step()
        begin = run.device.begin

        def begin_and_interrupt(*given: Any) -> Any:
            begin(*given)
            raise RoundOver

        monkeypatch.setattr(run.device, "begin", begin_and_interrupt)
        release = threading.Event()
        run.device.compute.wait_for(release)
        with pytest.raises(RoundOver):
            run.save()
        threading.Timer(0.05, release.set).start()
        run.saves.close()
        bytes_then = bytes(run.slots[0])
        assert bytes_then != bytes(len(bytes_then))
        run.device.wait_for_all()
        assert bytes(run.slots[0]) == bytes_then


@pytest.mark.parametrize("broken", ["begin", "hold"])
def test_the_property_finds_a_device_that_copies_too_early_or_does_not_hold_the_optimizer(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training(0) as run:
        if broken == "hold":
            monkeypatch.setattr(run.saves, "hold", lambda _: None)
        else:
            monkeypatch.setattr("tests.checkpoint.threaded_device.Stream.wait_for", lambda self, event: None)
        for _ in range(50):
            run.step()
            run.save()
        run.saves.finish()
        assert run.torn


@pytest.mark.parametrize("many", [False, True])
def test_small_tensors_side_by_side_are_gathered_and_what_the_forward_pass_changes_is_copied_at_once(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copies, "AT_ONCE_BYTES", 15 if many else 16)
    device = ThreadedDevice(0)
    try:
        run = Training(device)
        run.saves.close()
        tree = flatten(run.state)
        later = stepped_names(run.state, tree, device.device)
        assert later == {f"weights.{number}" for number in range(len(SIZES))}
        calls: list[tuple[int, list[int], int]] = []

        class Recorder(ThreadedDevice):
            def begin(self, pairs: Any, gathers: Any, at_once: Any = ()) -> Any:
                calls.append((len(pairs), [len(gather.sources) for gather in gathers], len(at_once)))
                return super().begin(pairs, gathers, at_once)

        run.state["seen"].fill_(9)
        recorder = Recorder(1)
        plan = CopyPlan(run.layout, tree.tensors, later, device.device)
        plan.begin(run.slots[0], tree, json_bytes({}), recorder, 1).wait()
        recorder.end()
        assert run.layout.tensors["seen"].view(run.slots[0]).tolist() == [9.0] * 4
        *waited_for, (pairs, gathered, at_once) = calls
        assert (waited_for, at_once) == (([(0, [], 1)], 0) if many else ([], 1)), "many bytes are waited for"
        assert pairs + sum(gathered) == len(SIZES)
        assert sum(gathered) >= 4
    finally:
        device.end()


def test_overlapped_saves_of_a_checkpointer_are_committed_flushed_and_restored(
    node: Any, make_state: Callable[[int], dict[str, Any]], same: Any
) -> None:
    device = ThreadedDevice(3, trains_here=True)
    node.begin(1)
    state, live = make_state(1), make_state(2)
    checkpointer = Checkpointer(state, keeper=node.link(), copies=lambda _: device)
    for iteration in range(1, 6):
        state["model"](torch.randn(4, 40)).square().sum().backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        state["position"] = iteration
        checkpointer.save(iteration, state)
        assert checkpointer.staged_bytes > 0
        assert (checkpointer.copy_s > 0) == (iteration > 1)  # That of the save before.
    checkpointer.finish(state)
    assert node.persisted[-1].iteration == 5
    assert device.registered
    checkpointer.close()
    device.end()
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    assert Checkpointer(live, keeper=node.link(2)).load(live) == 5
    assert same(live, state)


def test_the_end_of_a_training_saves_again_what_was_not_kept_and_a_save_for_the_store_waits(
    node: Any, make_state: Callable[[int], dict[str, Any]], same: Any
) -> None:
    device = ThreadedDevice(3, trains_here=True)
    node.begin(1)
    state, live = make_state(1), make_state(2)
    checkpointer = Checkpointer(state, keeper=node.link(), copies=lambda _: device)

    def change_after_a_save(iteration: int, *, persist: bool) -> None:
        state["optimizer"].step()
        release = threading.Event()
        device.compute.wait_for(release)  # The copies cannot begin.
        timer = threading.Timer(0.05, release.set)
        if persist:
            timer.start()
        checkpointer.save(iteration, state, persist)
        with torch.no_grad():
            state["model"][0].weight.add_(7.0)
        if not persist:
            timer.start()

    checkpointer.save(1, state)
    change_after_a_save(2, persist=True)
    checkpointer.flush(2)
    assert node.persisted[-1].iteration == 2
    change_after_a_save(3, persist=False)
    checkpointer.finish(state)
    assert node.persisted[-1].iteration == 3
    checkpointer.close()
    device.end()
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    assert Checkpointer(live, keeper=node.link(2)).load(live) == 3
    assert same(live, state), "as the state is at the end"


def test_what_a_device_computes_after_its_collectives_were_aborted_is_not_kept(
    node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    device, aborted = ThreadedDevice(3, trains_here=True), threading.Event()
    node.begin(1)
    state = make_state(1)
    checkpointer = Checkpointer(state, keeper=node.link(), copies=lambda _: device, is_aborted=aborted.is_set)
    checkpointer.save(1, state)
    checkpointer.flush(1)
    state["optimizer"].step()
    release = threading.Event()
    device.compute.wait_for(release)  # A collective that does not end.
    checkpointer.save(2, state)
    aborted.set()
    release.set()  # The aborted collective ends, and what was queued after it goes on.
    with pytest.raises(AbortedError, match="not kept"):
        checkpointer.save(3, state)
    checkpointer.close()
    assert node.newest().iteration == 1
    device.end()


@pytest.mark.parametrize("has_devices", [True, False])
def test_a_state_on_the_cpu_that_a_device_may_have_computed_is_not_kept_after_an_abort_either(
    has_devices: bool, node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    aborted = threading.Event()
    node.begin(1)
    state = make_state(1)
    with patch.object(torch.accelerator, "is_available", lambda: has_devices):
        checkpointer = Checkpointer(state, keeper=node.link(), is_aborted=aborted.is_set)
    checkpointer.save(1, state)
    aborted.set()
    if has_devices:
        with pytest.raises(AbortedError, match="not kept"):
            checkpointer.save(2, state)
        checkpointer.flush(1)
    else:  # An aborted collective of gloo has raised before.
        checkpointer.save(2, state)
        checkpointer.flush(2)
    assert node.newest().iteration == (1 if has_devices else 2)


class Clock:
    """Of a device: work that is queued there takes as long as it says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_what_the_device_computes_before_the_copies_is_neither_a_stall_nor_copying(
    node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    clock, state = Clock(), make_state(1)
    device = ThreadedDevice(3, clock=clock, work=lambda: clock.advance(3.0))
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link(), copies=lambda _: device)
    state["optimizer"].step()
    device.compute.queue(lambda: clock.advance(10.0))
    checkpointer.save(1, state, persist=True)
    assert checkpointer.stall_s == 3.0, "the device waited for the copies, as the save did"
    checkpointer.flush(1)
    assert checkpointer.copy_s == 3.0
    checkpointer.close()
    device.end()


def test_the_time_for_which_a_step_waits_for_copies_is_told_as_a_stall_with_a_later_save(
    node: Any, make_state: Callable[[int], dict[str, Any]]
) -> None:
    clock, state, seconds = Clock(), make_state(1), iter([3.0])
    device = ThreadedDevice(3, clock=clock, work=lambda: clock.advance(next(seconds, 0.0)))
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link(), copies=lambda _: device)
    release = threading.Event()
    device.copies.wait_for(release)
    state["optimizer"].step()
    checkpointer.save(1, state)
    assert checkpointer.stall_s == 0.0
    state["optimizer"].step()
    assert device.holds[-1][0].wait(30.0), "the device has come to the step"
    release.set()
    device.wait_for_all()
    checkpointer.save(2, state)
    assert (checkpointer.stall_s, checkpointer.copy_s) == (3.0, 3.0)
    device.wait_for_all()
    checkpointer.save(3, state)
    assert checkpointer.stall_s == 0.0, "told once"
    checkpointer.close()
    device.end()


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_wait_for_the_commit_of_the_save_before_is_a_stall_only_if_the_device_has_nothing_to_do(
    is_busy: bool, node: Any, make_state: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, state = Clock(), make_state(1)
    device, marked, release = ThreadedDevice(3, clock=clock), threading.Event(), threading.Event()
    node.begin(1)
    checkpointer = Checkpointer(state, keeper=node.link(), copies=lambda _: device)
    commit, mark = checkpointer._commit, device.mark

    def commit_slowly(stage: Any) -> None:
        assert marked.wait(30.0)
        clock.advance(5.0)
        commit(stage)

    def note_mark() -> Any:
        made = mark()
        assert is_busy or made._reached.wait(30.0)
        marked.set()
        return made

    monkeypatch.setattr(checkpointer, "_commit", commit_slowly)
    state["optimizer"].step()
    checkpointer.save(1, state)
    state["optimizer"].step()
    device.wait_for_all()
    if is_busy:
        device.compute.wait_for(release)  # The next forward pass.
    monkeypatch.setattr(device, "mark", note_mark)
    checkpointer.save(2, state)
    assert checkpointer.stall_s == (0.0 if is_busy else 5.0)
    release.set()
    checkpointer.close()
    device.end()
