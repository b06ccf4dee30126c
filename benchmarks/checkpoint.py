"""Checkpoints beside a quiet memcpy of the same bytes, in one run: `python -m benchmarks.checkpoint`.

Each case is a training script under `everstep launch` (`benchmarks.checkpoint_worker`): it saves, persists, is killed
and restores. A ratio's two sides were measured in turns in that process, medians; memcpy = the same bytes between two
buffers that both were touched before, by as many threads. What has no budget stands there for comparison.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.acceptance import Line
from tests.harness import ROOT
from tests.minio import running

SAVE, FIRST, RESTORE, PEER, PERSIST, AGENT_MB = 1.2, 1.5, 1.5, 1.5, 0.9, 200
"""Budgets: times memcpy (PEER: times a loopback copy), share of a plain upload's speed, MB beyond the slots."""
OTHERS = ("torch.save", "dcp.save", "dcp.async_save")
STORE = "BENCHMARK_STORE"
"""The variable that tells the worker."""
SAMPLE_S = 0.05
HUNG_S = 1200.0


@dataclass(frozen=True)
class Told:
    """What a case asks for."""

    folder: str
    """Results and scratch files."""
    size: int
    """Bytes of the state, over all ranks."""
    tensors: int
    """0: a model under FSDP2 with AdamW."""
    rounds: int
    saves: bool = True
    """False: only what the store has to do with."""
    others: bool = False
    """torch.save and torch.distributed.checkpoint too."""


@dataclass
class Seen:
    """Seconds by name, in the order they came."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    size: int = 0
    """Bytes of the largest rank's state."""


@dataclass(frozen=True)
class Case:
    """A state and where it goes."""

    name: str
    mib: int
    tensors: int
    ranks: int = 1
    s3: bool = False
    saves: bool = True
    others: bool = False


def cases(mib: int, large_mib: int) -> dict[str, Case]:
    """By the word that chooses them."""
    small, large = f"{mib / 1024:g} GiB", f"{large_mib / 1024:g} GiB"
    found = {
        "plain": Case(f"{small}, 200 tensors", mib, 200, others=True),
        "minio": Case(f"{small}, MinIO", mib, 200, s3=True, saves=False),
        "many": Case(f"{small}, 20,000 tensors", mib, 20_000, others=True),
        "fsdp2": Case(f"{small}, FSDP2 on 2 ranks", mib, 0, ranks=2, others=True),
    }
    return {**found, "large": Case(f"{large}, 200 tensors", large_mib, 200)} if large_mib else found


def measured(case: Case, rounds: int) -> tuple[dict[str, list[float]], float, int]:
    """(seconds by name, the agent's peak bytes beyond shared memory, bytes of the largest rank's state)."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="everstep-benchmark-")))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        uri = str(folder / "store")
        if case.s3:
            minio = held.enter_context(running(folder))
            environment |= minio.environment
            uri = minio.new_prefix()
        told = Told(str(folder), case.mib << 20, case.tensors, rounds, case.saves, case.others)
        command = [
            sys.executable, "-m", "everstep", "launch", "--standalone", f"--nproc-per-node={case.ranks}",
            "--max-restarts=1", "--rdzv-conf=read_timeout=600", "--persist-interval=1000000", f"--store={uri}",
            str(ROOT / "benchmarks" / "checkpoint_worker.py"), json.dumps(asdict(told)),
        ]  # fmt: skip
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, env={**environment, STORE: uri}, stdout=out, stderr=out)
        peak = _watched(process)
        saved, restored = folder / "saved.json", folder / "restored.json"
        if process.returncode or not restored.exists():
            raise RuntimeError(f"{case.name}: {log.read_text()[-3000:]}")
        seen = [Seen(**json.loads(path.read_text())) for path in (saved, restored)]
    # A memcpy of the first life stands beside the saves, one of the second beside the restores.
    again = {("memcpy, restoring" if name == "memcpy" else name): each for name, each in seen[1].seconds.items()}
    return {**seen[0].seconds, **again}, peak, seen[0].size


def _watched(process: subprocess.Popen[bytes]) -> float:
    """Wait for its end; the most that it held in memory that was its own."""
    peak, wait = 0, threading.Event()
    agent = psutil.Process(process.pid)
    for _ in range(int(HUNG_S / SAMPLE_S)):
        if process.poll() is not None:
            return peak
        with suppress(psutil.NoSuchProcess):
            memory = agent.memory_info()
            peak = max(peak, memory.rss - memory.shared)
        wait.wait(SAMPLE_S)
    process.kill()
    raise TimeoutError(f"not done within {HUNG_S:.0f} s: {process.args}")


def lines(chosen: Sequence[Case], rounds: int) -> Iterator[Line]:
    """Everything that is measured. A line that wants nothing is there for comparison."""
    for case in chosen:
        seconds, agent, size = measured(case, rounds)
        median = {name: statistics.median(each) for name, each in seconds.items()}
        told = f"{case.name}: "
        if case.saves:
            yield from _saves(told, median)
        yield from _stores(told, median, "MinIO" if case.s3 else "directory", size)
        yield Line(f"{told}agent's memory beyond the slots", f"<= {AGENT_MB} MB", f"{agent / 1e6:.0f} MB",
                   agent <= AGENT_MB * 1e6)  # fmt: skip


def _saves(told: str, median: dict[str, float]) -> Iterator[Line]:
    copy, back = median["memcpy"], median["memcpy, restoring"]
    yield Line(f"{told}memcpy", "", f"{copy * 1e3:.0f} ms", True)
    yield _times(f"{told}save, the first (sizes announced)", median["first"], copy, FIRST)
    yield _times(f"{told}save, the second", median["second"], copy, SAVE)
    yield _times(f"{told}save, steady", median["steady"], copy, SAVE)
    yield _times(f"{told}save, stall while it trains", median["training"], copy, SAVE)
    yield _times(f"{told}restore from own memory, a new process's first", median["restore, first"], back, RESTORE)
    yield _times(f"{told}restore from own memory, again", median["restore"], back, RESTORE)
    yield _times(f"{told}restore from a peer, beside loopback", median["restore, peer"], median["loopback"], PEER)
    for name in OTHERS:
        if name in median:
            yield _times(f"{told}{name}, how long training waits", median[name], copy, None)


def _stores(told: str, median: dict[str, float], store: str, size: int) -> Iterator[Line]:
    share = median["upload"] / median["persist"]
    measured = f"{share:.2f} x ({size / 1e6 / median['persist']:.0f} MB/s)"
    yield Line(f"{told}persist to {store}, of a plain upload's speed", f">= {PERSIST}", measured, share >= PERSIST)
    yield _times(f"{told}restore from {store}", median["restore, store"], median["memcpy, restoring"], None)


def _times(promise: str, seconds: float, beside: float, budget: float | None) -> Line:
    times = seconds / beside
    wanted = "" if budget is None else f"<= {budget} x"
    return Line(promise, wanted, f"{times:.2f} x ({seconds * 1e3:.0f} ms)", budget is None or times <= budget)


def arguments() -> argparse.ArgumentParser:
    """The sizes; the defaults are the issue's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--large-mib", type=int, default=4096, help="0: without it")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--only", nargs="+", choices=[*cases(1, 1)], help="some of the cases")
    return parser


def main() -> None:
    """Print the table."""
    told = arguments().parse_args()
    known = cases(told.mib, told.large_mib)
    shown = Table("what", "budget", "measured", "holds")
    for line in lines([known[name] for name in told.only or known], told.rounds):
        print(f"{line.verdict:4}{line.promise}: {line.measured}", file=sys.stderr, flush=True)
        shown.add_row(line.promise, line.wanted, line.measured, line.verdict if line.wanted else "")
    Console().print(shown)


if __name__ == "__main__":
    main()
