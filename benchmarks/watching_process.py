"""The process that `watching` measures, by itself and by its parts."""

import ctypes
import json
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

ITERATIONS = 500
"""So many meet samples or not, and as many hooks and recorder or not."""
WARM_UP = 50
"""Iterations that do not count."""
TURNS = (False, True, True, False)
"""Which iterations of four are watched: whatever grows evenly falls out of their difference."""
PATIENCE_S = 60.0
_RECORDER = "_ZN4c10d17getFlightRecorderERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
"""c10d::getFlightRecorder(const std::string& backend); its result begins with `bool enabled_`."""


class Cost(NamedTuple):
    """Seconds of something."""

    wall_s: float
    cpu_s: float
    """Of all threads of the process."""


def cost_of(work: Callable[[], object]) -> Cost:
    """Do it once."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


class Hooks:
    """The hooks of this process, which was watched before: turned on and off, and the CPU time of their calls."""

    def __init__(self, plain_next: Callable[[Any], Any]) -> None:
        self.step_s, self.next_s = list[float](), {False: list[float](), True: list[float]()}
        """CPU seconds: of each call of the hook; of each batch, without and with the hook."""
        self._steps: dict[int, Any] = import_module("torch.optim.optimizer")._global_optimizer_post_hooks
        ((self._number, self._after_step),) = self._steps.items()
        self._iterator = import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        self._nexts = {False: plain_next, True: self._iterator.__next__}
        self._on = True
        self.turn(True)

    def turn(self, on: bool) -> None:
        """Turn all of them on or off."""
        self._on = on
        self._steps.pop(self._number, None)
        if on:
            self._steps[self._number] = self._timed_step
        self._iterator.__next__ = self._nexts[on]

    def next_batch(self, batches: Iterator[Any]) -> Any:
        """Take it, and note how long that takes."""
        began = time.thread_time()
        batch = next(batches)
        self.next_s[self._on].append(time.thread_time() - began)
        return batch

    def _timed_step(self, *arguments: Any) -> None:
        began = time.thread_time()
        self._after_step(*arguments)
        self.step_s.append(time.thread_time() - began)


class Sampler:
    """The thread that counts collectives: from now on it does so when it is asked."""

    def __init__(self, board: Path) -> None:
        from everstep.runtime.watch import in_worker

        self._board, self._wait_s = board, None
        self._asked, self._sleeps = threading.Semaphore(0), threading.Semaphore(0)
        in_worker.time = SimpleNamespace(sleep=self._sleep, time=time.time, perf_counter=time.perf_counter)  # type: ignore[assignment]
        time.sleep(2 / in_worker.SAMPLES_PER_S)  # Its last pause by itself is over.
        self.per_second = in_worker.SAMPLES_PER_S

    def ask(self, wait_s: float | None) -> None:
        """Have one sample taken, so many seconds from now; None: only wake the thread, for two iterations to be alike.

        When this returns, the thread sleeps, as in a script.
        """
        self._wait_s = wait_s
        self._asked.release()
        self._sleeps.acquire()

    def samples(self) -> int:
        """How many were taken."""
        from everstep.runtime.watch.board import read_board

        board = read_board(self._board)
        assert board is not None
        return board.samples

    def _sleep(self, _: float) -> None:
        wait_s = None
        while wait_s is None:
            self._asked.acquire()
            wait_s = self._wait_s
            self._sleeps.release()
        time.sleep(wait_s)


def _recorder_switch(backend: bytes) -> ctypes.c_bool:
    """Whether torch's flight recorder keeps a backend's collectives. Raises AttributeError if this torch has none."""
    import torch

    class String(ctypes.Structure):
        """A short std::string of libstdc++."""

        _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("short", ctypes.c_char * 16))

    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
    name = String(size=len(backend), short=backend)
    name.data = ctypes.addressof(name) + String.short.offset
    find = library[_RECORDER]
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return ctypes.c_bool.from_address(find(ctypes.addressof(name)))


def _newest_record() -> int:
    """The number of the newest collective that the flight recorder keeps."""
    from torch._C import _distributed_c10d

    trace = json.loads(_distributed_c10d._dump_fr_trace_json(True, False))  # type: ignore[attr-defined]
    return max(entry["record_id"] for entry in trace["entries"])


def _make_training() -> tuple[Iterator[Any], Callable[[Any], None]]:
    """Batches without end, and a function that trains an iteration on one."""
    import torch

    class Batches(torch.utils.data.IterableDataset[Any]):
        """The same batch always: what takes time is the loader."""

        def __iter__(self) -> Iterator[Any]:
            batch = torch.randn(64, 384)
            while True:
                yield batch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())

    def train(batch: Any) -> None:
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return iter(torch.utils.data.DataLoader(Batches(), batch_size=None)), train


class Parts(NamedTuple):
    """What a process has measured."""

    plain: Cost
    """Of an iteration without watching: the median."""
    hooks_s: float
    """CPU time of both hooks an iteration."""
    collectives: float
    """Of an iteration."""
    record_s: float
    """CPU time that the recorder takes for one."""
    recorded_by_default: bool
    """Does this torch's recorder keep collectives by itself, so that a plain script pays for it, too?"""
    sample: Cost
    samples_per_s: int
    by_turns: float
    """The check: what whole iterations with hooks and recorder cost more, as a share of their CPU time."""

    def share(self, recorder: bool) -> float:
        """The cost as a share of the time, with the recorder's or without it."""
        return self.each_s(recorder) / self.plain.cpu_s + self.sample.cpu_s * self.samples_per_s

    def each_s(self, recorder: bool) -> float:
        """CPU time of what each iteration meets."""
        return self.hooks_s + (self.collectives * self.record_s if recorder else 0.0)


def measure_process(_: int) -> Parts:
    """In a process of its own."""
    import torch

    from everstep.runtime.watch import board, in_worker

    plain_next = import_module("torch.utils.data.dataloader")._BaseDataLoaderIter.__next__
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "board"
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "EVERSTEP_ROUND": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), board.VARIABLE: str(path)}
        by_default = _recorder_switch(b"another").value
        in_worker.install(os.environ)
        batches, train = _make_training()
        hooks, recorder, sampler = Hooks(plain_next), _recorder_switch(b"gloo"), Sampler(path)
        before = _newest_record()
        plain = [cost_of(lambda: train(hooks.next_batch(batches))) for _ in range(WARM_UP)]
        collectives = (_newest_record() - before) / WARM_UP
        hooks.turn(False)
        iteration_s = statistics.median(cost.wall_s for cost in plain)
        sample = _cost_of_sample(sampler, iteration_s, lambda: train(hooks.next_batch(batches)))

        hooks.step_s.clear()
        hooks.next_s = {False: [], True: []}
        tensor, iterations = torch.zeros(1), list[Cost]()
        collectives_s: dict[bool, list[float]] = {False: [], True: []}
        for number in range(ITERATIONS):
            recorder.value = on = TURNS[number % len(TURNS)]
            hooks.turn(on)
            iterations.append(cost_of(lambda: train(hooks.next_batch(batches))))
            newest = _newest_record() if number < len(TURNS) else None
            collectives_s[on].append(cost_of(lambda: torch.distributed.all_reduce(tensor)).cpu_s)
            assert newest is None or (_newest_record() > newest) == on, "the recorder was switched"
        board_text = board.read_board(path)
        assert board_text is not None
        assert board_text.iteration == WARM_UP + ITERATIONS // 2, "the hook was switched"
    plain = [cost for number, cost in enumerate(iterations) if not TURNS[number % len(TURNS)]]
    median = Cost(*(statistics.median(values) for values in zip(*plain, strict=True)))
    hooks_s = fmean(hooks.step_s) + fmean(hooks.next_s[True]) - fmean(hooks.next_s[False])
    record_s = fmean(collectives_s[True]) - fmean(collectives_s[False])
    fours = [[cost.cpu_s for cost in iterations[at : at + len(TURNS)]] for at in range(0, ITERATIONS, len(TURNS))]
    by_turns = _mean_more(fours) / median.cpu_s
    return Parts(median, hooks_s, collectives, record_s, by_default, sample, sampler.per_second, by_turns)


def _cost_of_sample(sampler: Sampler, iteration_s: float, train: Callable[[], None]) -> Cost:
    """What a sample costs an iteration that it falls into."""
    fours = list[Sequence[Cost]]()
    for _ in range(ITERATIONS // len(TURNS)):
        costs, met = list[Cost](), True
        for on in TURNS:
            samples = sampler.samples()
            sampler.ask(random.uniform(0, 0.8) * iteration_s if on else None)
            costs.append(cost_of(train))
            met = met and (sampler.samples() > samples) == on
            deadline = time.monotonic() + PATIENCE_S
            while on and sampler.samples() == samples:  # It falls behind its iteration, and the four do not count.
                assert time.monotonic() < deadline, "the collectives were counted"
                time.sleep(iteration_s / 10)
        fours += [costs] if met else []
    assert len(fours) > ITERATIONS // len(TURNS) // 4, "most samples fell into their iterations"
    return Cost(*(_mean_more([[cost[kind] for cost in costs] for costs in fours]) for kind in range(len(Cost._fields))))


def _mean_more(fours: Sequence[Sequence[float]]) -> float:
    """How much more a watched iteration takes: the mean of the middle half of the differences, in `TURNS`."""
    more = sorted((second + third - first - fourth) / 2 for first, second, third, fourth in fours)
    return fmean(more[len(more) // 4 : -(len(more) // 4) or None])
