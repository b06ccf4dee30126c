"""What it costs that a script is watched from outside: `python -m benchmarks.watching`. Budget: <= 0.5 % of its time.

Forks of one process train the same model with and without a board (hooks, counting thread, torch's
flight recorder), in pairs. Compared is the CPU time of the median iteration, which a busy machine disturbs less than
its wall-clock time; the result is the median over the pairs.
"""

import argparse
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

BUDGET = 0.005
ITERATIONS, FIRST = 200, 50
"""Iterations of each fork, and those of them that do not count."""


def cost_per_iteration(path: Path) -> float:
    """CPU seconds of the median iteration of a DDP training in this process; with a board, if `path` is in a folder."""
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
    data, spent = torch.randn(64, 384), []
    for _ in range(ITERATIONS):
        began = time.process_time()
        model(data).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        spent.append(time.process_time() - began)
    if path.name != "none":
        board_text = board.read_board(path)
        assert board_text is not None
        assert board_text.iteration == ITERATIONS, "the hooks were installed"
        assert board_text.samples > 0, "the collectives were counted"
    return statistics.median(spent[FIRST:])


def measure(path: Path) -> float:
    """The same in a fork of this process."""
    answers, answer_pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(answer_pipe, str(cost_per_iteration(path)).encode())
        finally:
            os._exit(0)
    os.close(answer_pipe)
    with os.fdopen(answers) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return float(text)


class Overhead(NamedTuple):
    """What watching costs, over the pairs."""

    share: float
    """Of an iteration: the median. Below 0: less than the noise."""
    quartiles: tuple[float, float]
    """The first and the third, which show the noise of this machine."""
    plain_s: float
    """CPU seconds of an iteration without watching: the median."""

    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.share:+.2%} ({low:+.2%} to {high:+.2%}) of {self.plain_s * 1e3:.1f} ms CPU"


def overhead(pairs: int) -> Overhead:
    """Measure so many pairs (at least two)."""
    import torch._dynamo  # noqa: F401 (the first optimizer of each fork would import it)

    shares, plain = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for number in range(pairs):
            paths = [Path(folder, "none"), Path(folder, f"board-{number}")]
            first, second = (measure(path) for path in (paths if number % 2 else paths[::-1]))
            without, watched = (first, second) if number % 2 else (second, first)
            shares.append(watched / without - 1)
            plain.append(without)
    low, _, high = statistics.quantiles(shares, n=4)
    return Overhead(statistics.median(shares), (low, high), statistics.median(plain))


def main() -> None:
    """Print the result; exit code 1 if the budget is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="pairs of trainings (default: 15)")
    share_text = overhead(max(parser.parse_args().pairs, 2))
    word = "holds" if share_text.share <= BUDGET else "NOT"
    print(f"watching a script: {share_text} an iteration, budget {BUDGET:.1%}: {word}")
    raise SystemExit(share_text.share > BUDGET)


if __name__ == "__main__":
    main()
