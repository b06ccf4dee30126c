"""The figures of docs/figures.md: the default run's steps and memory, and the cost of a worker's kill -9. `make bench`.

Figures of whole processes in one run on this machine, with their budgets.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from benchmarks.recovery import Kill, format_kills, kills
from tests.harness import Pipeline, Watched, wait_until

MIB = 1 << 20


@dataclass
class Memory:
    """Peak memory of a run's processes (PSS) and of its shared memory, in bytes, sampled."""

    peak: int = 0
    samples: int = 0


@contextmanager
def sample_memory(total: Callable[[], int], every_s: float) -> Iterator[Memory]:
    """Call `total`, which returns bytes, again and again while the block runs."""
    memory, over = Memory(), threading.Event()

    def sample() -> None:
        while not over.wait(every_s):
            memory.peak, memory.samples = max(memory.peak, total()), memory.samples + 1

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()


def memory_of(run: Watched, launcher: int, every_s: float = 0.5) -> AbstractContextManager[Memory]:
    """Sample while the block runs. Memory mapped from /dev/shm counts twice, so the figure errs upwards."""

    def total() -> int:
        number = sum(path.stat().st_size for path in run.segments() if path.exists())
        for process in {*run.processes(), *tree(launcher)}:
            with suppress(psutil.Error):
                number += process.memory_full_info().pss
        return number

    return sample_memory(total, every_s)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


@dataclass(frozen=True)
class DefaultRun:
    """What the default pipeline took."""

    exit_code: int
    seconds: float
    steps: dict[str, float]
    """Seconds by step."""
    peak_bytes: int
    dataset: str
    folder: Path
    left: list[str]


def default_run(folder: Path, *flags: str) -> DefaultRun:
    """Run `python pipelines/llama_finetune.py` from nothing."""
    run = Pipeline(folder / "runs" / "bench", folder / "runs" / "store", name="bench", flags=flags)
    started = time.monotonic()
    launcher = run.start()
    with memory_of(run, launcher.pid) as memory:
        code = run.finish()
    seconds = time.monotonic() - started
    nodes = run.workflow()["status"]["nodes"].values()
    steps = {
        node["displayName"]: (_moment(node["finishedAt"]) - _moment(node["startedAt"])).total_seconds()
        for node in nodes
        if node["type"] == "Pod" and node.get("finishedAt")
    }
    tokens = next(node for node in nodes if node["displayName"].startswith("tokenize") and node.get("outputs"))
    dataset = next(p["value"] for p in tokens["outputs"]["parameters"] if p["name"] == "uri")
    return DefaultRun(code, seconds, steps, memory.peak, dataset, run.folder, run.leftovers())


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def table(rows: list[tuple[str, str, str]]) -> str:
    """A Markdown table of (what, measured, budget)."""
    head = [("what", "measured", "budget"), ("---", "---", "---")]
    return "\n".join(f"| {what} | {measured_text} | {budget} |" for what, measured_text, budget in head + rows)


def rows_of(run: DefaultRun, killed: list[Kill]) -> list[tuple[str, str, str]]:
    """The figures as rows."""
    rows = [(f"step `{name}`", f"{took:.1f} s", "") for name, took in run.steps.items()]
    rows += [
        ("the default run, after the installation", f"{run.seconds:.0f} s", "<= 180 s"),
        ("peak memory of the whole run (PSS + shared memory)", f"{run.peak_bytes / MIB:.0f} MiB", "<= 4096 MiB"),
    ]
    if killed:
        rows += [
            (
                f"kill -9 of a worker -> next iteration finished, {len(killed)} kills",
                format_kills(killed),
                "<= 1 s",
            ),
            ("iterations lost at a kill, at most", str(max(kill.lost for kill in killed)), "<= 1"),
        ]
    return rows


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        run = default_run(Path(name))
        if run.exit_code:
            sys.exit(f"the default run ended with {run.exit_code}; see {run.folder}")
        killed = [kill for kill, _ in kills(Path(name), run.dataset, options.kills)]
        wait_until(lambda: not run.left, "nothing left of the run", 5)
    print(f"{os.cpu_count()} cores\n\n{table(rows_of(run, killed))}")


if __name__ == "__main__":
    main()
