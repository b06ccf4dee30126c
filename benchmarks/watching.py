"""What it costs that a script is watched from outside: `python -m benchmarks.watching`. Budget: <= 0.5 % of its time.

A process trains in blocks that take turns: plain, watched, watched, plain, ... Watched: a hook after each optimizer
step, the thread that counts collectives, torch's flight recorder. All three are switched within one process, as two
processes differ by a percent or more for reasons of their own, such as where their memory lies. Of a block all its
iterations count, as the thread counts in few of them. A process's result is the median of the ratios of its pairs of
blocks, since a fault of the machine disturbs single blocks; the result is the median of the processes. Its 95 %
confidence interval is that of a median, from their order, whatever their distribution. Takes about six minutes.

Measured are wall-clock time, and the CPU time of the whole process, which counts the thread on another core and which a
busy machine disturbs less. The budget is kept if both intervals lie within it. Not counted: the agent's own process,
which reads the boards; the hooks of a data loader (about a microsecond a batch), `eval()` and `torch.save`. `--part`
switches one part alone, and the others stay on.
"""

import argparse
import ctypes
import json
import math
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

BUDGET = 0.005
PROCESSES, BLOCKS, BLOCK_S = 16, 20, 0.4
"""Processes; the plain and the watched blocks that each of them trains; how long one is."""
WARM_UP = 50
"""Iterations of each process that do not count."""
CONFIDENCE = 0.95
_RECORDER = "_ZN4c10d17getFlightRecorderERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
"""c10d::getFlightRecorder(const std::string& backend); its result begins with `bool enabled_`."""


class Part(StrEnum):
    """What watches."""

    HOOK = "hook"
    THREAD = "thread"
    RECORDER = "recorder"


class Cost(NamedTuple):
    """Of a block."""

    wall_s: float
    cpu_s: float


class Switch:
    """Turns parts of the watching of this process off and on. Made after its process group."""

    def __init__(self, parts: Sequence[Part]) -> None:
        optimizer = import_module("torch.optim.optimizer")
        from everstep.runtime.watch import in_worker

        self._parts = parts
        self._hooks: dict[int, Any] = optimizer._global_optimizer_post_hooks
        self._hook = next(iter(self._hooks.items()))
        self._recorder = _recorder_switch()
        self._counts = threading.Event()
        self._counts.set()
        in_worker.time = SimpleNamespace(sleep=self._sleep, time=time.time, perf_counter=time.perf_counter)  # type: ignore[assignment]

    def turn(self, on: bool) -> None:
        """Turn the parts off or on."""
        if Part.HOOK in self._parts:
            self._hooks.pop(self._hook[0], None)
            self._hooks |= dict([self._hook]) if on else {}
        if Part.THREAD in self._parts:
            (self._counts.set if on else self._counts.clear)()
        if Part.RECORDER in self._parts:
            self._recorder.value = on

    def _sleep(self, seconds: float) -> None:
        """The thread's pause. In a watched block it counts as often as if it had never been turned off."""
        time.sleep(seconds)
        while not self._counts.is_set():
            self._counts.wait()
            time.sleep(seconds * random.random())


def _recorder_switch() -> ctypes.c_bool:
    """Whether torch's flight recorder keeps gloo's collectives. Raises AttributeError if this torch has none."""
    import torch

    class String(ctypes.Structure):
        """A short std::string of libstdc++."""

        _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("short", ctypes.c_char * 16))

    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
    name = String(size=4, short=b"gloo")
    name.data = ctypes.addressof(name) + String.short.offset
    find = library[_RECORDER]
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return ctypes.c_bool.from_address(find(ctypes.addressof(name)))


def _newest_record() -> int:
    """The number of the newest collective that the flight recorder keeps."""
    from torch._C import _distributed_c10d

    trace = json.loads(_distributed_c10d._dump_fr_trace_json(True, False))  # type: ignore[attr-defined]
    return max(entry["record_id"] for entry in trace["entries"])


def _make_training() -> Callable[[int], Cost]:
    """A function that trains so many iterations."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(64, 384)

    def train(iterations: int) -> Cost:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(iterations):
            model(data).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return Cost(time.perf_counter() - wall, time.process_time() - cpu)

    return train


def measure_process(parts: Sequence[Part], _: int) -> tuple[float, list[tuple[Cost, Cost]]]:
    """In a process of its own: (seconds of an iteration without watching, (plain, watched) blocks)."""
    from everstep.runtime.watch import board, in_worker

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "board"
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "EVERSTEP_ROUND": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), board.VARIABLE: str(path)}
        in_worker.install(os.environ)
        train = _make_training()
        train(WARM_UP)
        switch, counted = Switch(parts), WARM_UP

        def block(iterations: int, watched: bool) -> Cost:
            nonlocal counted
            switch.turn(watched)
            counted += iterations if watched or Part.HOOK not in parts else 0
            before = _newest_record()
            cost = train(iterations)
            assert (_newest_record() > before) == (watched or Part.RECORDER not in parts), "the recorder was switched"
            return cost

        iterations = max(round(BLOCK_S / (block(WARM_UP, False).wall_s / WARM_UP)), 1)
        costs = list[tuple[Cost, Cost]]()
        for number in range(BLOCKS):
            first, second = (block(iterations, watched) for watched in (bool(number % 2), not number % 2))
            costs.append((second, first) if number % 2 else (first, second))
        board_text = board.read_board(path)
        assert board_text is not None
        assert board_text.iteration == counted, "the hook was switched"
        assert board_text.samples > 0, "the collectives were counted"
    return statistics.median(plain.wall_s for plain, _ in costs) / iterations, costs


@dataclass(frozen=True)
class Share:
    """What watching costs, as a share of the time without it. Below 0: less than the noise."""

    median: float
    low: float
    high: float
    """The confidence interval."""

    def __str__(self) -> str:
        return f"{self.median:+.2%} ({self.low:+.2%} to {self.high:+.2%})"


@dataclass(frozen=True)
class Overhead:
    """What watching costs, over the processes."""

    wall: Share
    cpu: Share
    plain_s: float
    """Wall-clock seconds of an iteration without watching: the median."""

    @property
    def holds(self) -> bool:
        """Is it within the budget, beyond the noise?"""
        return max(self.wall.high, self.cpu.high) <= BUDGET

    @property
    def word(self) -> str:
        """`holds`, `NOT`, or that the noise does not let one say."""
        if self.holds:
            return "holds"
        return (
            "NOT" if max(self.wall.low, self.cpu.low) > BUDGET else "NOT DECIDED: the noise is larger than the budget"
        )

    def __str__(self) -> str:
        return f"{self.wall} of wall-clock time, {self.cpu} of CPU time of iterations of {self.plain_s * 1e3:.1f} ms"


def share_of(shares: Sequence[float]) -> Share:
    """The median of independent results, and the confidence interval of it."""
    ordered, count = sorted(shares), len(shares)
    rank, outside = -1, 0.0
    while (outside := outside + 2 * math.comb(count, rank + 1) / 2**count) <= 1 - CONFIDENCE:
        rank += 1
    low, high = (ordered[rank], ordered[count - 1 - rank]) if rank >= 0 else (-math.inf, math.inf)
    return Share(statistics.median(ordered), low, high)


def overhead(processes: int = PROCESSES, parts: Sequence[Part] = tuple(Part)) -> Overhead:
    """Measure in so many processes, one after the other."""
    wall, cpu, plain_s = list[float](), list[float](), list[float]()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for iteration_s, costs in pool.imap(partial(measure_process, parts), range(processes)):
            wall.append(statistics.median(watched.wall_s / plain.wall_s - 1 for plain, watched in costs))
            cpu.append(statistics.median(watched.cpu_s / plain.cpu_s - 1 for plain, watched in costs))
            plain_s.append(iteration_s)
    return Overhead(share_of(wall), share_of(cpu), statistics.median(plain_s))


def main() -> None:
    """Print the result; exit code 1 unless the budget is kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"how many train (default: {PROCESSES})")
    parser.add_argument("--part", type=Part, choices=list(Part), help="switch this part alone")
    options = parser.parse_args()
    measured = overhead(max(options.processes, 1), [options.part] if options.part else tuple(Part))
    print(f"watching a script: {measured}, budget {BUDGET:.1%}: {measured.word}")
    raise SystemExit(not measured.holds)


if __name__ == "__main__":
    main()
