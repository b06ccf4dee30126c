"""The first saves of a job beside a memcpy of the same bytes: `python -m benchmarks.first_saves`.

They wait until the memory of their slot is there, which `benchmarks.checkpoint` leaves out. Each job is a new
`everstep launch` of one worker with its own memory; the median of the jobs is printed. memcpy is the best of five
copies between two touched buffers, at the end of the same process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import everstep
from tests.harness import ROOT

TENSORS = 200
COPIES = 5
ITERATION_S = 0.2
JOB_S = 300.0


def measure(mib: int, saves: int) -> list[float]:
    """Seconds of a memcpy, then those that each save of a new job blocks training. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as folder:
        seconds_file = Path(folder, "seconds.json")
        command = [
            sys.executable, "-m", "everstep", "launch", "--standalone", "--nproc-per-node=1",
            "--persist-interval=1000000", f"--store={folder}/store",
            str(ROOT / "benchmarks" / "first_saves.py"), f"--mib={mib}", f"--saves={saves}", f"--worker={seconds_file}",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=JOB_S)
        return json.loads(seconds_file.read_text())


def work(mib: int, saves: int) -> list[float]:
    """The worker: what `measure` returns."""
    job = everstep.init()
    each = (mib << 20) // TENSORS // 4
    state = {f"layer{n:03d}": torch.full((each,), float(n), device=job.device) for n in range(TENSORS)}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    stalls = []
    for iteration in range(1, saves + 1):
        _compute()
        began = time.perf_counter()
        checkpointer.save(iteration, state)
        stalls.append(time.perf_counter() - began)
    return [_memcpy(each * 4 * TENSORS), *stalls]


def _compute() -> None:
    """As long as a short iteration."""
    end, a = time.perf_counter() + ITERATION_S, torch.randn(512, 512)
    while time.perf_counter() < end:
        a = torch.tanh(a @ a)


def _memcpy(size: int) -> float:
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    seconds = []
    for _ in range(COPIES):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the state (1024)")
    parser.add_argument("--saves", type=int, default=5, help="saves of each job (5)")
    parser.add_argument("--jobs", type=int, default=3, help="jobs (3)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        options.worker.write_text(json.dumps(work(options.mib, options.saves)))
        return
    jobs = [measure(options.mib, options.saves) for _ in range(options.jobs)]
    shown = Table("save", "blocks for", "relative to memcpy", title=f"{options.mib} MiB in {TENSORS} tensors")
    for number in range(1, options.saves + 1):
        times = statistics.median(job[number] / job[0] for job in jobs)
        shown.add_row(str(number), f"{statistics.median(job[number] for job in jobs):.2f} s", f"{times:.1f} x")
    Console().print(shown)


if __name__ == "__main__":
    main()
