"""Lines of `benchmarks.accept_gpu`: a state on one device is saved and restored."""

import argparse
import gc
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer, map_segment_ahead
from everstep.runtime.store import DirectoryStore
from tests.fake_agent import Node

DEVICE = "cuda"
COPIES = 3
"""Of the state in shared memory: three slots, or what one peer of them writes there."""
SHARE = 0.85
"""Of the free memory that is used."""
PROMISED_BYTES = 12e9
"""Of a smaller state fixed costs are too large a part: what holds for it says nothing of what is promised."""
HOLD_S = 600.0
"""Nothing goes to the store for so long after a worker's death: longer than the digests take that a restore needs. Else
the whole state would be written there during the restore, which an agent does not do."""
PARAMETER_BYTES = 12
"""Of the state: fp32 weights and AdamW's two moments."""
WIDTH, FACTOR = 2048, 8192
ITERATION_S = 1.0
PINS = True
"""dcp.async_save is measured with pinned staging."""
REPEATS = 7
FIRST_SAVES = 3
"""As many as there are slots: each of ours is registered after its first save."""
PINNED_BYTES = 2 << 30
"""A pinned copy of more goes through so much memory several times: pinning takes far longer than copying."""
CONTEXT_S = 2.0
"""What a new process takes at least until it can restore: the shard's pages are mapped then."""
ALLOCATION_S = 300.0
"""Allocating the slots takes less, also where a virtual machine's host must supply the memory first."""


def state_of(gib: float) -> dict[str, Any]:
    """A model and AdamW with about so many GiB of state on the device: large matrices and small vectors."""
    parameters = gib * 2**30 / PARAMETER_BYTES
    width = min(WIDTH, int(parameters**0.5))
    layers = max(1, int(parameters / (width * width + width)))
    model = torch.nn.ModuleList(torch.nn.Linear(width, width, device=DEVICE) for _ in range(layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def state_bytes(state: Mapping[str, Any]) -> int:
    """Bytes of the state."""
    moments = (value for own in state["optimizer"].state.values() for value in own.values())
    return sum(tensor.nbytes for tensor in [*state["model"].parameters(), *moments])


def say(words: str) -> None:
    """Print what a line has found so far: should it not end, that is not lost."""
    print(f"      {words}", file=sys.stderr, flush=True)


@contextmanager
def node(state: dict[str, Any], folder: Path) -> Iterator[tuple[Node, Checkpointer]]:
    """A node in its first round, whose slots are in a folder of shared memory, and its worker's checkpointer."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        gpu_node = Node(Path(name), DirectoryStore(Path(name) / "store"), death_s=HOLD_S)
        try:
            gpu_node.begin(1)
            checkpointer = Checkpointer(state, keeper=gpu_node.link())
            allocation_s = _timed(partial(gpu_node.has_memory, ALLOCATION_S))
            say(f"{state_bytes(state) / 1e9:.1f} GB of state; its slots have their memory {allocation_s:.1f} s later")
            yield gpu_node, checkpointer
        finally:
            gpu_node.close()


def free_bytes(folder: Path) -> float:
    """Free bytes of its file system; infinite for one without a limit, as a tmpfs may be."""
    place = os.statvfs(folder)
    return place.f_bavail * place.f_frsize if place.f_blocks else math.inf


def host_gib(options: argparse.Namespace) -> float:
    """The GiB of state that were requested, or fewer if shared memory or the host has less room. Uses no device.

    The host's memory also has what this process and its pinned copy need.
    """
    shared = free_bytes(options.shared_memory) * SHARE / COPIES
    host = (options.memory_gib * 2**30 or psutil.virtual_memory().available) * SHARE / (COPIES + 1)
    return min(options.gib, shared / 2**30, host / 2**30)


def fitting_gib(options: argparse.Namespace) -> float:
    """As `host_gib`, or fewer if the device has less room."""
    return min(host_gib(options), torch.cuda.mem_get_info()[0] / 3 / 2**30)


def judge(words: str, size: float, holds: bool) -> tuple[str, bool | None]:
    """A line's figures of a state of so many bytes, and the verdict: none on a state that is smaller than promised."""
    if size < PROMISED_BYTES:
        return f"{words}; not judged: of {size / 1e9:.1f} GB, not {PROMISED_BYTES / 1e9:.0f}", None
    return words, holds


def median_s(work: Callable[[], object], times: int = REPEATS) -> float:
    """The median of the seconds that `work` and what it queues take; the first time does not count."""
    seconds = []
    for _ in range(times + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def iteration_s(iterate: Callable[[], object]) -> float:
    """Seconds of an iteration in a row of some, as training has them: what other streams do for the next is not waited
    for. The first one does not count; what it has begun on other streams does, as the last one's does not."""
    iterate()
    torch.cuda.current_stream().synchronize()
    began = time.perf_counter()
    for _ in range(REPEATS):
        iterate()
    torch.cuda.current_stream().synchronize()
    return (time.perf_counter() - began) / REPEATS


def pinned_s(size: int, *, to_device: bool = False) -> float:
    """Seconds of one copy of so many bytes from the device to pinned memory, or the other way."""
    room = min(size, PINNED_BYTES)
    pinned = torch.empty(room, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(room, dtype=torch.uint8, device=DEVICE)
    target, source = (on_device, pinned) if to_device else (pinned, on_device)

    def copy() -> None:
        for at in range(0, size, room):
            part = slice(min(room, size - at))
            target[part].copy_(source[part], non_blocking=True)

    return median_s(copy)


def measure_staging(options: argparse.Namespace) -> tuple[str, bool | None]:
    """A save and the wait for its commit, beside one pinned copy."""
    state = state_of(fitting_gib(options))
    size = state_bytes(state)
    with node(state, options.folder) as (_, checkpointer):
        numbers = iter(range(1, 1000))

        def save() -> None:
            save_and_wait(checkpointer, next(numbers), state)

        first = [_timed(save) for _ in range(3)]
        began = time.perf_counter()
        refused = wait_for_registrations(checkpointer)
        registered = time.perf_counter() - began
        unpinned = f"to slots that are not registered: {', '.join(f'{seconds:.2f}' for seconds in first)} s"
        say(f"the first three saves, {unpinned}; registered {registered:.1f} s later")
        ours = median_s(save)
        say(f"a save {ours:.3f} s, {size / ours / 1e9:.1f} GB/s")
        checkpointer.close()
    theirs = pinned_s(size)
    told = f"the first three, to slots that are not registered: {max(first):.1f} s; registered {registered:.1f} s later"
    words = f"{ours / theirs:.2f} x ({ours:.3f} s and {theirs:.3f} s, {size / 1e9:.1f} GB; {told}{refused})"
    return judge(words, size, ours <= 1.1 * theirs)


def save_and_wait(checkpointer: Checkpointer, iteration: int, state: dict[str, Any]) -> None:
    """A save, until it is committed."""
    checkpointer.save(iteration, state)
    checkpointer._finish_overlapped()  # pyright: ignore[reportPrivateUsage]


def wait_for_registrations(checkpointer: Checkpointer) -> str:
    """Until the last save is committed, and the slots that were written are registered. Returns words for the line if
    some could not be: copies to them are slower."""
    checkpointer._finish_overlapped()  # pyright: ignore[reportPrivateUsage]
    saves = checkpointer._overlapped  # pyright: ignore[reportPrivateUsage]
    registrations = list(saves._registrations.values()) if saves else []  # pyright: ignore[reportPrivateUsage]
    refused = [registration.result() for registration in registrations].count(False)
    return f"; {refused} of {len(registrations)} slots could NOT be registered" if refused else ""


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_overlap(options: argparse.Namespace) -> tuple[str, bool | None]:
    """Iterations of about a second, with a save in each and with none: those before and after, as a device slows down
    while it gets warm."""
    state = state_of(fitting_gib(options))
    factor = torch.randn(FACTOR, FACTOR, device=DEVICE)
    product = torch.empty_like(factor)
    product_s = median_s(lambda: torch.mm(factor, factor, out=product))

    def iterate() -> None:
        for _ in range(max(1, int(ITERATION_S / product_s))):
            torch.mm(factor, factor, out=product)
        state["optimizer"].step()

    before = iteration_s(iterate)
    say(f"iterations of {before:.3f} s")
    with node(state, options.folder) as (_, checkpointer):
        numbers, stalls = iter(range(1, 1000)), list[float]()

        def iterate_and_save() -> None:
            iterate()
            checkpointer.save(next(numbers), state)
            stalls.append(checkpointer.stall_s)

        for _ in range(3):
            iterate_and_save()
        refused = wait_for_registrations(checkpointer)
        stalls.clear()
        saving = iteration_s(iterate_and_save)
        say(f"iterations of {saving:.3f} s with a save in each; told as its stall: {statistics.median(stalls):.3f} s")
        checkpointer.close()
    after = iteration_s(iterate)
    cost = 2 * saving / (before + after) - 1
    size = state_bytes(state)
    plain = f"iterations of {before:.3f} s before and {after:.3f} s after"
    return judge(f"{cost:+.1%} of {plain}, {size / 1e9:.1f} GB saved in each{refused}", size, cost <= 0.02)


def measure_peers(options: argparse.Namespace) -> tuple[str, bool]:
    """How long a save of the same state by each stops a training that has nothing queued.

    Left out are the first saves of each, which allocate, pin or register memory, and what comes after the stop: our
    copies, for which the next step waits (see `measure_overlap`), and dcp.async_save's file. torch.save writes its file
    meanwhile, and DLRover keeps the state in memory alone."""
    state = state_of(min(2.0, fitting_gib(options)))
    plain = {"model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict()}
    ours, refused = _our_stop_s(state, options.folder)
    gc.collect()  # Whatever still maps the slots keeps their memory.
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        file = Path(name) / "state.pt"
        torch_save = stop_s(lambda: torch.save(plain, file))
        file.unlink()
        dcp = _dcp_stop_s(plain, Path(name))
        dlrover = _dlrover_stop(plain, Path(name))
    return (
        f"{state_bytes(state) / 1e9:.1f} GB, the first {FIRST_SAVES} saves left out: Everstep {ours:.3f} s before its "
        f"copies{refused}; torch.save {torch_save:.2f} s; dcp.async_save {dcp:.2f} s before its file; "
        f"DLRover {dlrover}"
    ), True


def _our_stop_s(state: dict[str, Any], folder: Path) -> tuple[float, str]:
    """The seconds, and which slots could not be registered."""
    refusals, numbers = [""], iter(range(1, 1000))
    with node(state, folder) as (_, checkpointer):

        def end() -> None:
            refusals.append(wait_for_registrations(checkpointer))
            state["optimizer"].step()

        ours = stop_s(lambda: checkpointer.save(next(numbers), state), end)
        checkpointer.close()
    return ours, refusals[-1]


def stop_s(save: Callable[[], object], end: Callable[[], object] = lambda: None) -> float:
    """The median of the seconds until `save` returns, without the first ones. `end` waits for what it began."""
    seconds = []
    for _ in range(FIRST_SAVES + 3):
        torch.cuda.synchronize()
        seconds.append(_timed(save))
        end()
    return statistics.median(seconds[FIRST_SAVES:])


def _dcp_stop_s(plain: dict[str, Any], folder: Path) -> float:
    """Into memory that is pinned once."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import async_save

    class KeptStager(DefaultStager):
        def close(self) -> None:
            """torch 2.11 calls it after each save, and pins anew in the next."""

    stager, saves = KeptStager(StagingOptions(PINS, False, False, PINS)), list[Any]()

    def save() -> None:
        saves.append(async_save(plain, checkpoint_id=str(folder / "dcp"), async_stager=stager, no_dist=True))

    def end() -> None:
        saves.pop().result()
        shutil.rmtree(folder / "dcp")

    return stop_s(save, end)


def _dlrover_stop(plain: dict[str, Any], folder: Path) -> str:
    """Of its flash checkpoint in memory, by its documentation (docs/blogs/flash_checkpoint.md); never run."""
    try:
        from dlrover.trainer.torch.flash_checkpoint.ddp import (  # pyright: ignore[reportMissingImports]
            DdpCheckpointer,
            StorageType,
        )
    except ImportError:
        return "not installed"
    store = torch.distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    checkpointer, numbers = DdpCheckpointer(f"{folder / 'dlrover'}"), iter(range(1, 1000))

    def save() -> None:
        checkpointer.save_checkpoint(next(numbers), dict(plain), storage_type=StorageType.MEMORY)

    return f"{stop_s(save):.2f} s"


def measure_restore(options: argparse.Namespace) -> tuple[str, bool | None]:
    """The first restore of a new process's checkpointer, beside one pinned copy. Left out, and told, are what passes
    before it: the agent's check of the digests, and the seconds in which the shard's pages are mapped. What computes
    the digests runs beside training, and is not counted."""
    state = state_of(fitting_gib(options))
    size = state_bytes(state)
    parameter = next(state["model"].parameters())
    expected = parameter.detach().clone()
    with node(state, options.folder) as (place, checkpointer):
        save_and_wait(checkpointer, 1, state)
        checkpointer.close()
        place.keeper.worker_died(0)
        newest = place.newest()
        began = time.perf_counter()
        place.begin(2, newest)
        place.keeper.wait_for_restore(0)
        checked = time.perf_counter() - began
        link = place.link(2)
        ahead = map_segment_ahead(link)  # As a new process does, which makes its CUDA context meanwhile.
        time.sleep(CONTEXT_S)
        parameter.data.zero_()
        torch.cuda.synchronize()
        began = time.perf_counter()
        again = Checkpointer(state, keeper=link, ahead=ahead)
        restored = again.load(state)
        torch.cuda.synchronize()
        ours = time.perf_counter() - began
        say(f"iteration {restored} restored in {ours:.3f} s, after a check of {checked:.1f} s")
        again.close()
    if restored != 1 or not torch.equal(parameter, expected):
        return f"iteration {restored} was restored, and a parameter is not what was saved", False
    theirs = pinned_s(size, to_device=True)
    words = (
        f"{ours / theirs:.2f} x ({ours:.2f} s, {size / 1e9:.1f} GB; left out: the agent's check before took "
        f"{checked:.2f} s, with it {(ours + checked) / theirs:.2f} x; pages are mapped in {CONTEXT_S:g} s, as while a "
        "process starts)"
    )
    return judge(words, size, ours <= 1.2 * theirs)
