"""What it costs that a script is watched from outside: `python -m benchmarks.watching`. Budget: <= 0.5 % of its time.

Pairs of processes train the same model, one with a board (hooks, counting thread, torch's flight recorder), one
without. The two of a pair take turns, block after block (plain, watched, watched, plain, ...), so that both meet the
same machine; of a block all its iterations count, as the thread counts in few of them. A pair's result is the median of
the ratios of its blocks, since a fault of the machine disturbs single blocks; the result is the median of the pairs,
since two processes also differ by where their memory lies. Its 95 % confidence interval is that of a median, from the
order of the pairs, whatever their distribution. Takes about five minutes.

Measured are wall-clock time, and the CPU time of the whole process, which counts the thread on another core and which a
busy machine disturbs less. The budget is kept if both intervals lie within it. Not counted: the agent's own process,
which reads the boards.
"""

import argparse
import math
import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

BUDGET = 0.005
PAIRS, BLOCKS, BLOCK_S = 16, 20, 0.4
"""Pairs of processes; the blocks that each process of them trains; how long one is."""
WARM_UP = 50
"""Iterations of each process that do not count."""
CONFIDENCE = 0.95
_BLOCK = struct.Struct("=dd")


class Cost(NamedTuple):
    """Of a block."""

    wall_s: float
    cpu_s: float


def train(path: Path, orders: socket.socket) -> None:
    """In a process of its own: train as many iterations as each order says, and answer with what they cost; 0: end.
    With a board, if `path` is in a folder."""
    import torch
    import torch.distributed as dist

    from everstep.runtime.watch import board, in_worker

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "EVERSTEP_ROUND": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), board.VARIABLE: str(path)}
    if path.name != "none":
        in_worker.install(os.environ)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    data, done = torch.randn(64, 384), 0
    while iterations := int.from_bytes(orders.recv(4, socket.MSG_WAITALL)):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(iterations):
            model(data).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        orders.sendall(_BLOCK.pack(time.perf_counter() - wall, time.process_time() - cpu))
        done += iterations
    if path.name != "none":
        board_text = board.read_board(path)
        assert board_text is not None
        assert board_text.iteration == done, "the hooks were installed"
        assert board_text.samples > 0, "the collectives were counted"


class Training:
    """A process that trains when it is asked to."""

    def __init__(self, path: Path) -> None:
        self._orders, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                self._orders.close()
                train(path, theirs)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self.run(WARM_UP)

    def run(self, iterations: int) -> Cost:
        """Train so many iterations."""
        self._orders.sendall(iterations.to_bytes(4))
        answer = self._orders.recv(_BLOCK.size, socket.MSG_WAITALL)
        if len(answer) != _BLOCK.size:
            raise RuntimeError("a training of the benchmark has failed; its error is above")
        return Cost(*_BLOCK.unpack(answer))

    def end(self) -> None:
        """End the process. Raises RuntimeError if it was not watched as it should have been."""
        self._orders.sendall(bytes(4))
        self._orders.close()
        _, status = os.waitpid(self._pid, 0)
        if status:
            raise RuntimeError("a training of the benchmark has failed; its error is above")


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
    """What watching costs, over the pairs."""

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


@contextmanager
def trainings(folder: Path, *, plain_first: bool) -> Iterator[tuple[Training, Training]]:
    """(Plain, watched), started one after the other."""
    paths = [folder / "none", folder / "board"]
    started = [Training(path) for path in (paths if plain_first else paths[::-1])]
    yield (started[0], started[1]) if plain_first else (started[1], started[0])
    for training in started:
        training.end()


def overhead(pairs: int = PAIRS) -> Overhead:
    """Measure so many pairs."""
    import torch._dynamo  # noqa: F401 (the first optimizer of each fork would import it)

    wall, cpu, plain_s = list[float](), list[float](), list[float]()
    for number in range(pairs):
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
            trainings(Path(folder), plain_first=bool(number % 2)) as (plain, watched),
        ):
            iterations = max(round(BLOCK_S / (plain.run(WARM_UP).wall_s / WARM_UP)), 1)
            watched.run(WARM_UP)
            costs = list[tuple[Cost, Cost]]()
            for block in range(BLOCKS):
                if block % 2:
                    later = watched.run(iterations)
                    costs.append((plain.run(iterations), later))
                else:
                    costs.append((plain.run(iterations), watched.run(iterations)))
        wall.append(statistics.median(with_.wall_s / without.wall_s - 1 for without, with_ in costs))
        cpu.append(statistics.median(with_.cpu_s / without.cpu_s - 1 for without, with_ in costs))
        plain_s.append(statistics.median(without.wall_s / iterations for without, _ in costs))
    return Overhead(share_of(wall), share_of(cpu), statistics.median(plain_s))


def main() -> None:
    """Print the result; exit code 1 unless the budget is kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of trainings (default: {PAIRS})")
    measured = overhead(max(parser.parse_args().pairs, 1))
    print(f"watching a script: {measured}, budget {BUDGET:.1%}: {measured.word}")
    raise SystemExit(not measured.holds)


if __name__ == "__main__":
    main()
