"""Checkpoints compared with a quiet memcpy of the same bytes, in one run: `python -m benchmarks.checkpoint`.

Each case is a training script under `everstep launch` (`benchmarks.checkpoint_worker`): it saves, persists, is killed
and restores. A ratio is a median of several; its two times are measured one right after the other in the same process,
because a machine's memory may be twice as fast a minute later. memcpy means: the same bytes between two buffers that
were touched before, with as many threads, the median of a few copies. A measurement between two memcpys that differ by
more than a fifth does not count; if a process can do it only once, another process repeats it. A line without a budget
is for comparison.

What a process does once, its first saves and its first restore, is measured in several processes. Each part of a case
measures what it must once, and repeats while its time lasts. Without `others` it takes 22 minutes on an idle machine.
`--only` and `--parts` select.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.acceptance import Line
from tests.harness import ROOT
from tests.minio import running

SAVE, FIRST, RESTORE, PEER, PERSIST, AGENT_MB = 1.2, 1.5, 1.5, 1.5, 0.9, 200
"""Budgets: multiples of memcpy (PEER: of a loopback copy), share of a plain upload's speed, MB beyond the slots."""
OTHERS = ("torch.save", "dcp.save", "dcp.async_save")
PARTS = {
    "save": "save: first, second, steady, while it trains",
    "memory": "restore from own memory",
    "peer": "restore from a peer's memory",
    "store": "persist to the case's store, restore from it",
    "minio": "restore from MinIO",
    "others": f"{', '.join(OTHERS)}",
}
ONCE = {"save": ("first", "second"), "memory": ("restore, first",)}
"""What a process does only once, by part."""
STORE, MINIO = "BENCHMARK_STORE", "BENCHMARK_MINIO"
"""Variables that configure the worker."""
SAMPLE_S = 0.05
HUNG_S = 900.0
"""Longer than any case takes, however busy the machine is."""
MOST_TRIES = 2
"""At most so many times the requested processes, if the machine's speed changes."""
SLOTS = {False: 3, True: 4}
"""Slots per state, by whether it is sharded."""
SPARE_MIB = 1536
"""Memory of the programs and a store, in addition to the states."""


@dataclass(frozen=True)
class CasePlan:
    """The parameters of a case."""

    folder: str
    """For results and scratch files."""
    size: int
    """Bytes of the state, over all ranks."""
    tensors: int
    """0: a model under FSDP2 with AdamW."""
    rounds: int
    """Measurements of each, if there is time."""
    parts: list[str]
    others: list[str]
    part_s: float
    """A part repeats nothing after so many seconds."""


@dataclass
class Timings:
    """Seconds by name, in order of measurement."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of the memcpy beside each measurement: other machines share the memory, so its speed changes."""
    dropped: int = 0
    """Measurements during which the machine's speed changed."""
    size: int = 0
    """Bytes of the largest rank's state."""


@dataclass(frozen=True)
class Case:
    """A state, and where it is persisted."""

    name: str
    mib: int
    tensors: int
    ranks: int = 1
    s3: bool = False
    parts: tuple[str, ...] = tuple(PARTS)
    others: tuple[str, ...] = OTHERS

    @property
    def store(self) -> str:
        """The kind of store that it is persisted to."""
        return "MinIO" if self.s3 else "directory"

    @property
    def needed_mib(self) -> int:
        """Memory in MiB: the state, its slots, dcp.async_save's copy, the two buffers of a memcpy."""
        states = 1 + SLOTS[not self.tensors] + ("others" in self.parts and OTHERS[-1] in self.others)
        return self.mib * states + min(2 * self.mib, 512 * self.ranks) + SPARE_MIB


def cases(mib: int, large_mib: int) -> dict[str, Case]:
    """The cases, by the word that selects them."""
    small, large = f"{mib / 1024:g} GiB", f"{large_mib / 1024:g} GiB"
    cases = {
        "plain": Case(f"{small}, 200 tensors", mib, 200),
        "minio": Case(f"{small}, MinIO", mib, 200, s3=True, parts=("store",)),
        "many": Case(f"{small}, 20,000 tensors", mib, 20_000),
        "fsdp2": Case(f"{small}, FSDP2 on 2 ranks", mib, 0, ranks=2),
    }
    if large_mib:  # Without dcp.async_save, whose copy of the state needs 4 GiB more.
        cases["large"] = Case(f"{large}, 200 tensors", large_mib, 200, others=OTHERS[:2])
    return cases


def measure(case: Case, options: argparse.Namespace) -> tuple[Timings, float]:
    """(The processes' timings, the agent's peak bytes beyond shared memory).

    Raises RuntimeError with the end of the log if the run fails.
    """
    timings, peak = _run_case(case, options)
    once = tuple(part for part in case.parts if part in ONCE)
    names = [name for part in once for name in ONCE[part]]
    for number in range(1, MOST_TRIES * options.starts) if once else ():
        if number >= options.starts and all(len(timings.times.get(name, ())) >= options.starts for name in names):
            break
        more, another = _run_case(replace(case, parts=once), options)
        peak = max(peak, another)
        timings.dropped += more.dropped
        for mine, its in ((timings.seconds, more.seconds), (timings.times, more.times)):
            for name, values in its.items():
                mine.setdefault(name, []).extend(values)
    return timings, peak


def _run_case(case: Case, options: argparse.Namespace) -> tuple[Timings, float]:
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="everstep-benchmark-")))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        uri = str(folder / "store")
        if case.s3 or "minio" in case.parts:
            minio = resources.enter_context(running(folder))
            environment |= minio.environment | {MINIO: minio.new_prefix()}
            uri = minio.new_prefix() if case.s3 else uri
        size, parts, others = case.mib << 20, list(case.parts), list(case.others)
        plan = CasePlan(str(folder), size, case.tensors, options.rounds, parts, others, options.part_s)
        command = [
            sys.executable, "-m", "everstep", "launch", "--standalone", f"--nproc-per-node={case.ranks}",
            "--max-restarts=1", "--rdzv-conf=read_timeout=600", f"--hang-timeout={2 * HUNG_S:g}",
            "--persist-interval=1000000", f"--store={uri}",
            str(ROOT / "benchmarks" / "checkpoint_worker.py"), json.dumps(asdict(plan)),
        ]  # fmt: skip
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, env={**environment, STORE: uri}, stdout=out, stderr=out)
        peak, why = _wait(process)
        saved_path, restored = folder / "saved.json", folder / "restored.json"
        if process.returncode or not restored.exists():
            raise RuntimeError(f"{case.name}: {why}\n{log.read_text()[-3000:]}")
        timings = [Timings(**json.loads(path.read_text())) for path in (saved_path, restored)]
    first, second = timings
    first.seconds["memcpy"] += second.seconds.pop("memcpy")
    dropped = first.dropped + second.dropped
    return Timings(first.seconds | second.seconds, first.times | second.times, dropped, first.size), peak


def _wait(process: subprocess.Popen[bytes]) -> tuple[float, str]:
    """Wait for the process to end; returns its peak private memory, and how it ended."""
    peak, wait = 0, threading.Event()
    agent = psutil.Process(process.pid)
    until = time.monotonic() + HUNG_S
    while time.monotonic() < until:
        if process.poll() is not None:
            return peak, f"exit code {process.returncode}"
        with suppress(psutil.NoSuchProcess):
            memory = agent.memory_info()
            peak = max(peak, memory.rss - memory.shared)
        wait.wait(SAMPLE_S)
    workers = agent.children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    for child in [process, *workers]:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
    return peak, f"not done within {HUNG_S:.0f} s"


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """All measurements. A line without a budget is for comparison."""
    cases_by_name = cases(options.mib, options.large_mib)
    for case in (cases_by_name[name] for name in options.only or cases_by_name):
        parts = tuple(part for part in case.parts if part in (options.parts or PARTS))
        if not parts:
            continue
        yield from _lines_of(replace(case, parts=parts), options)


def _lines_of(case: Case, options: argparse.Namespace) -> Iterator[Line]:
    free_mib = psutil.virtual_memory().available >> 20
    if free_mib < case.needed_mib:
        yield Line(f"{case.name}: memory", f">= {case.needed_mib} MiB", f"{free_mib} MiB are free", False)
        return
    began = time.monotonic()
    try:
        timings, agent = measure(case, options)
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        yield Line(f"{case.name}: it ends", "exit code 0", str(error).splitlines()[0], False)
        return
    before = f"{case.name}: "
    yield Line(f"{before}memcpy", "", f"{statistics.median(timings.seconds['memcpy']) * 1e3:.0f} ms", True)
    yield from _times(before, timings, case)
    if "upload" in timings.times:
        share, seconds = statistics.median(timings.times["upload"]), statistics.median(timings.seconds["persist"])
        speed = timings.size / 1e6 / seconds
        yield Line(f"{before}persist to {case.store}, of a plain upload's speed", f">= {PERSIST}",
                   f"{share:.2f} x ({speed:.0f} MB/s)", share >= PERSIST)  # fmt: skip
    yield Line(f"{before}agent's memory beyond the slots", f"<= {AGENT_MB} MB", f"{agent / 1e6:.0f} MB",
               agent <= AGENT_MB * 1e6)  # fmt: skip
    took = f"{time.monotonic() - began:.0f} s"
    yield Line(
        f"{before}all of it", "", f"{took}; {timings.dropped} measurements while copying changed its speed", True
    )


def _times(before: str, timings: Timings, case: Case) -> Iterator[Line]:
    limits: dict[str, tuple[str, str, float | None]] = {
        "first": ("save", "save, the first (sizes announced)", FIRST),
        "second": ("save", "save, the second", SAVE),
        "steady": ("save", "save, steady", SAVE),
        "training": ("save", "save, stall while it trains", SAVE),
        "restore, first": ("memory", "restore from own memory, a new process's first", RESTORE),
        "restore": ("memory", "restore from own memory, again", RESTORE),
        "restore, peer": ("peer", "restore from a peer, beside loopback", PEER),
        "restore, store": ("store", f"restore from {case.store}", None),
        "restore, MinIO": ("minio", "restore from MinIO", None),
        **{name: ("others", f"{name}, how long training waits", None) for name in OTHERS},
    }
    for name, (part, promise, budget) in limits.items():
        if part not in case.parts or name not in timings.seconds:
            continue
        if name not in timings.times:
            yield Line(f"{before}{promise}", "a quiet machine", "copying changed its speed each time", False)
        else:
            times, seconds = statistics.median(timings.times[name]), statistics.median(timings.seconds[name])
            budget_text = "" if budget is None else f"<= {budget} x"
            measured_text = f"{times:.2f} x ({seconds * 1e3:.0f} ms)"
            yield Line(f"{before}{promise}", budget_text, measured_text, budget is None or times <= budget)


def arguments() -> argparse.ArgumentParser:
    """The sizes; the defaults are those of the acceptance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--large-mib", type=int, default=4096, help="0: without it")
    parser.add_argument("--starts", type=int, default=5, help="processes that measure what each does once")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each, at most")
    parser.add_argument(
        "--part-s", type=float, default=20.0, help="after so many seconds a part measures nothing again"
    )
    parser.add_argument("--only", nargs="+", choices=[*cases(1, 1)], help="some of the cases")
    parts_help = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], help=f"some of each case's rows; {parts_help}")
    return parser


def main() -> None:
    """Print the table."""
    options = arguments().parse_args()
    result_table = Table("what", "budget", "measured", "holds")
    for line in lines(options):
        print(f"{line.verdict:4}{line.promise}: {line.measured}", file=sys.stderr, flush=True)
        result_table.add_row(line.promise, line.wanted, line.measured, line.verdict if line.wanted else "")
    Console().print(result_table)


if __name__ == "__main__":
    main()
