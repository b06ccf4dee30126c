"""The worker's side: fills its board from hooks, whatever the script does. Installed before the script runs.

- Iterations: torch's hook after each optimizer step (`torch.optim.optimizer.register_optimizer_step_post_hook`). Where
  a script has several optimizers, the one that steps first counts, and once it is gone the next one that steps.
- Operators and kernels: torch's profiler, for the iterations after somebody asked (`kernel_profile`).
- Phases: `Module.eval()` of a model that trained begins an evaluation, which ends with the next iteration or
  `Module.train()`; what saves, as below. Only the main thread's count: others work beside the training.
- Waiting for data: the iterator of torch's DataLoader. For saves: `torch.save`, `torch.distributed.checkpoint`,
  safetensors, and our own checkpointer says it.
- Collectives: torch's flight recorders count them in C++ for gloo and NCCL, also those of DDP's and FSDP's own threads.
  A thread reads its counters `SAMPLES_PER_S` times a second, which takes 20 us, at moments that chance chooses: every
  0.2 s it would find ranks that take 0.1 s an iteration at the same place of it, each at its own.

Importing this module imports neither torch nor anything else that is not already in a fork server.
"""

import faulthandler
import importlib.abc
import importlib.machinery
import os
import random
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from everstep.runtime.watch.board import STACK_SIGNAL, THREAD, VARIABLE, BoardWriter, stack_file
from everstep.runtime.watch.board_fields import EVALUATION, GROUP_PHASE, SAVE, Board
from everstep.runtime.watch.flight_recorder import (
    UNREADABLE,
    Group,
    count_collectives,
    find_unfinished,
    groups_of,
    read_traces,
)
from everstep.runtime.watch.group_making import surround_group_making
from everstep.runtime.watch.kernel_profile import KernelProfile

SAMPLES_PER_S = 5
_NORMALIZATION = re.compile(r"Norm(\dd)?$")
"""How torch and others call the modules that are often frozen in a model that trains."""
_RECORDS = "256"
"""Collectives that torch's flight recorder keeps if the user does not say. By default, torch 2.9 keeps none for gloo,
torch 2.15 the newest 2000."""
_watch: "_Watch | None" = None


def make_board(environment: Mapping[str, str]) -> BoardWriter | None:
    """The worker's board, with its place in the job; None if it has none or it cannot be written."""
    path = environment.get(VARIABLE)
    if not path:
        return None
    with suppress(OSError, KeyError, ValueError):
        rank, world_size, round_ = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "EVERSTEP_ROUND"))
        local_rank = int(environment.get("EVERSTEP_LOCAL_RANK") or environment["LOCAL_RANK"])  # 0 for all if virtual.
        job, store = environment.get("EVERSTEP_JOB", ""), environment.get("EVERSTEP_STORE", "")
        return BoardWriter(path, Board(os.getpid(), rank, world_size, local_rank, round_, job, store=store))
    return None


def install(environment: Mapping[str, str]) -> None:
    """Watch this process from now on. Never fails: a script that cannot be watched still runs."""
    global _watch
    board = make_board(environment)
    if board is None:
        return
    _watch = watch = _Watch(board, KernelProfile(Path(environment[VARIABLE])))
    watch.answer_in(stack_file(Path(environment[VARIABLE])))
    if "TORCH_FR_BUFFER_SIZE" not in os.environ:
        os.putenv("TORCH_FR_BUFFER_SIZE", _RECORDS)  # For torch's C++ alone: the script sees what torchrun gives it.
    os.register_at_fork(after_in_child=_forget)
    hooks: dict[str, Callable[[Any], None]] = {
        "torch.optim.optimizer": watch.hook_optimizers,
        "torch.nn.modules.module": watch.hook_modules,
        "torch.serialization": partial(watch.hook_saves, ("save",)),
        "torch.distributed.checkpoint.state_dict": watch.hook_preparations,
        "torch.distributed.checkpoint.state_dict_saver": partial(watch.hook_saves, ("save", "async_save")),
        "safetensors.torch": partial(watch.hook_saves, ("serialize_file",)),  # All that it saves goes through it.
        "torch.utils.data.dataloader": watch.hook_loaders,
        "torch.distributed.distributed_c10d": watch.hook_groups,
    }
    waiting = {name: hook for name, hook in hooks.items() if not _apply(name, hook)}
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting))


def begin_round(environment: Mapping[str, str]) -> None:
    """This process continues in another round, and its board starts again; a spare's starts now."""
    if _watch is None:
        install(environment)
    elif (board := make_board(environment)) is not None:
        _watch.begin_round(board)
        _watch.answer_in(stack_file(Path(environment[VARIABLE])))


def doing(phase: str) -> AbstractContextManager[None]:
    """Meanwhile this worker is in that phase."""
    return _watch.doing(phase) if _watch is not None else nullcontext()


def show_phase(name: str) -> None:
    """The script says that it does this; "": nothing that it names."""
    if _watch is not None:
        _watch.show_phase(name)


def note_restore(iteration: int) -> None:
    """This worker has restored what earlier processes had made up to that iteration."""
    if _watch is not None:
        _watch.restored = iteration


def note_staging(seconds: float) -> None:
    """A save has kept this worker from training for `seconds`."""
    if _watch is not None:
        _watch.add_staging(seconds)


def note_tokens(count: float) -> None:
    """All ranks together have trained on `count` more tokens."""
    if _watch is not None:
        _watch.add_tokens(count)


def _forget() -> None:
    """A child of the script, such as a data loader's worker, does not write the worker's board."""
    global _watch
    if _watch is not None:
        _watch.is_child = True
        _watch = None


def _apply(name: str, hook: Callable[[Any], None]) -> bool:
    module = sys.modules.get(name)
    if module is None:
        return False
    with suppress(AttributeError, TypeError):  # This torch has no such hook.
        hook(module)
    return True


class _Watch:
    def __init__(self, board: BoardWriter, profile: KernelProfile) -> None:
        self._board, self._profile = board, profile
        self._optimizer: Callable[[], object] = _no_optimizer
        """Gives the one whose steps count, as long as the script has it."""
        self._ended_at = 0.0
        self._phase, self._phase_began = "", 0.0
        self._named = ""
        self._counts = (0, 0)
        self._old_groups = frozenset[Group]()
        """Of earlier rounds: new processes have none of them, and their collectives must compare."""
        self._sampler: threading.Thread | None = None
        self._prepares = False
        self.restored = 0
        """The iteration that the script went on from, if it said so; 0: from the beginning."""
        self.is_child = False
        self._answers: TextIO | None = None

    def begin_round(self, board: BoardWriter) -> None:
        """Before the script makes a group in it."""
        if recorder := _recorder():
            with suppress(*UNREADABLE):
                self._old_groups = groups_of(read_traces(recorder))
        self.restored = 0
        self._board, self._optimizer, self._ended_at = board, _no_optimizer, 0.0
        self._phase = self._named = ""
        self._counts = (0, 0)

    def answer_in(self, file: Path) -> None:
        """Have STACK_SIGNAL write this process's stacks there: the agent removes the files of the round before."""
        with suppress(OSError, ValueError, RuntimeError):
            answers = file.open("w")
            faulthandler.register(STACK_SIGNAL, answers, all_threads=True)
            if self._answers is not None:
                self._answers.close()
            self._answers = answers  # faulthandler needs it open.

    def set_phase(self, name: str) -> None:
        if self.is_child or name == self._phase or not _is_main_thread():
            return
        now = time.time()
        if self._phase == EVALUATION:
            self._board.add_spent(evaluation_s=now - self._phase_began)
        self._phase, self._phase_began = name, now
        self._board.set_phase(name, now)

    def show_phase(self, name: str) -> None:
        if name != self._named and not self.is_child and _is_main_thread():
            self._named = name
            self._board.set_named(name)

    def add_staging(self, seconds: float) -> None:
        if not self.is_child:
            self._board.add_spent(staging_s=seconds)

    def add_tokens(self, count: float) -> None:
        if not self.is_child:
            self._board.add_tokens(count)

    def hook_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, optimizer: Any, *_: object) -> None:
        """Short for the same reason as `BoardWriter.finish_iteration`."""
        if self.is_child or self._prepares:
            return
        if self._optimizer() is not optimizer and not self._begin_counting(optimizer):
            return
        now = time.perf_counter()
        seconds, self._ended_at = (now - self._ended_at if self._ended_at else 0.0), now
        if self._phase and self._phase in (EVALUATION, SAVE):
            self.set_phase("")
            seconds = 0.0  # It would count the evaluation as part of the iteration.
        self._board.finish_iteration(seconds, time.time())
        if now >= self._profile.due_at:
            self._profile.after_step(now)

    def _begin_counting(self, optimizer: Any) -> bool:
        """Count this optimizer's steps, unless those of another one count that the script still has."""
        if self._optimizer() is not None:
            return False
        self._optimizer = weakref.ref(optimizer)
        if self._ended_at:  # It takes the place of one that the script has dropped.
            return True
        if self._phase == EVALUATION:
            self.set_phase("")
        self._board.begin_counting(_earlier_steps(optimizer) or self.restored, time.time())
        return True

    def hook_modules(self, module: Any) -> None:
        train = module.Module.train

        def watched_train(model: Any, mode: bool = True) -> Any:
            if mode and self._phase == EVALUATION:
                self.set_phase("")
            # A teacher may be told again and again while its pupil trains, and so may normalizations that are frozen.
            elif not mode and model.training and not _NORMALIZATION.search(type(model).__name__):
                self.set_phase(EVALUATION)
            return train(model, mode)

        watched_train.__doc__ = train.__doc__
        module.Module.train = watched_train

    def hook_preparations(self, module: Any) -> None:
        """torch makes an optimizer's state by a step, to load a checkpoint into it."""
        prepare = module._init_optim_state

        @wraps(prepare)
        def unseen_prepare(*arguments: Any, **more: Any) -> Any:
            with self.preparing():
                return prepare(*arguments, **more)

        module._init_optim_state = unseen_prepare

    def hook_saves(self, names: Sequence[str], module: Any) -> None:
        """`names`: its functions that save; the package above it may have them, too."""
        package = sys.modules.get(module.__name__.rpartition(".")[0])
        for name in names:
            save = getattr(module, name)
            watched_save = self._watched_save(save)
            for holder in (module, package):
                if getattr(holder, name, None) is save:
                    setattr(holder, name, watched_save)

    def _watched_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(save)
        def watched_save(*arguments: Any, **more: Any) -> Any:
            if self._phase == SAVE or not _is_main_thread():  # A save within one counts as part of it.
                return save(*arguments, **more)
            began = time.perf_counter()
            with self.doing(SAVE):
                try:
                    return save(*arguments, **more)
                finally:
                    self.add_staging(time.perf_counter() - began)

        return watched_save

    def hook_loaders(self, module: Any) -> None:
        iterator = module._BaseDataLoaderIter
        take = iterator.__next__

        def watched_next(loader: Any) -> Any:
            began = time.perf_counter()
            try:
                return take(loader)
            finally:
                if not self.is_child and _is_main_thread():
                    self._board.add_data(time.perf_counter() - began)

        watched_next.__doc__ = take.__doc__
        iterator.__next__ = watched_next

    def hook_groups(self, module: Any) -> None:
        surround_group_making(module, self._sampling_afterwards)

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        before = self._phase
        self.set_phase(phase)
        try:
            yield
        finally:
            self.set_phase(before)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        before, self._prepares = self._prepares, True
        try:
            yield
        finally:
            self._prepares = before

    @contextmanager
    def _sampling_afterwards(self) -> Iterator[None]:
        with self.doing(GROUP_PHASE):
            yield
        self._start_sampler()

    def _start_sampler(self) -> None:
        """Only now: before, the process may fork, and has one thread."""
        recorder = _recorder()
        if recorder is not None and self._sampler is None and not self.is_child:
            self._sampler = threading.Thread(target=self._sample, args=[recorder], name=THREAD, daemon=True)
            self._sampler.start()

    def _sample(self, recorder: Any) -> None:
        open_collectives: tuple[int, str] | None = None
        chance = random.Random()  # Not the script's.
        while not self.is_child:
            time.sleep(pause_s(chance))
            with suppress(*UNREADABLE):
                traces = read_traces(recorder, without=self._old_groups)
                counts = entered_count, completed_count = count_collectives(traces)
                if counts != self._counts or completed_count >= entered_count:
                    open_collectives = None
                elif open_collectives is None:  # It waits: ask for what.
                    with suppress(*UNREADABLE):  # The counters are known all the same.
                        traces = read_traces(recorder, entries=True, without=self._old_groups)
                        open_collectives = find_unfinished(traces)
                self._counts = counts
                if open_collectives is not None:
                    completed_count = entered_count - open_collectives[0]
                self._board.set_collectives(
                    entered_count, completed_count, open_collectives[1] if open_collectives else "", time.time()
                )


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _no_optimizer() -> None:
    """A reference to none."""


def _recorder() -> Any:
    """torch's module with its flight recorders; None if it is not imported, or has none."""
    recorder = sys.modules.get("torch._C._distributed_c10d")
    return recorder if hasattr(recorder, "_dump_fr_trace_json") else None


def _earlier_steps(optimizer: Any) -> int:
    """Steps before its first one in this process: Adam and its kin count them in the state that a script restores.

    0 while a CUDA graph is captured: reading a number on the device would end the capture."""
    with suppress(*UNREADABLE, AttributeError):
        step = next(iter(optimizer.state.values()), {}).get("step", 1)
        if getattr(step, "is_cuda", False) and sys.modules["torch"].cuda.is_current_stream_capturing():
            return 0
        return max(int(step) - 1, 0)
    return 0


def pause_s(chance: random.Random) -> float:
    """How long the sampler sleeps this time: at any iteration time, each sample is at a place of it by itself."""
    return chance.uniform(0.5, 1.5) / SAMPLES_PER_S


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a hook right after its module was imported, then is in nobody's way."""

    def __init__(self, hooks: dict[str, Callable[[Any], None]]) -> None:
        self._hooks = hooks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        hook = self._hooks.pop(fullname, None)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, hook)
        return spec


class _HookedLoader(importlib.abc.Loader):
    def __init__(self, loader: Any, hook: Callable[[Any], None]) -> None:
        self._loader, self._hook = loader, hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        with suppress(AttributeError, TypeError):
            self._hook(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
