"""`python -m benchmarks.report`: the report of 1,000 nodes and 10,000 iterations: its time, memory, and page.

Real are reader, ledger and page, and the journal's and telemetry's formats; made up is what they say: ten rounds, each
ended by a lost node, and what rank 0 and the agents report of them. Every rank's restore is a line, as agents write it.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.runtime.job import records as job
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.rounds import Member, Round
from everstep.runtime.store import open_store

NODES, ITERATIONS, ROUNDS = 1000, 10_000, 10
SECONDS, BYTES, PAGE_BYTES = 10.0, 500 << 20, 5 << 20
"""The budget."""


@dataclass(frozen=True)
class Cost:
    """What a report cost."""

    seconds: float
    cpu_s: float
    """Of these on a CPU: on a busy machine far less."""
    peak_bytes: int
    page_bytes: int

    @property
    def holds(self) -> bool:
        """Is it within the budget?"""
        return self.seconds <= SECONDS and self.peak_bytes <= BYTES and self.page_bytes <= PAGE_BYTES

    def __str__(self) -> str:
        spent = f"{self.seconds:.1f} s ({self.cpu_s:.1f} s of CPU)"
        return f"{spent}, {self.peak_bytes / 2**20:.0f} MiB, page {self.page_bytes / 1e6:.2f} MB"


def journal() -> Iterator[job.Record]:
    """Ten rounds of all nodes, each ended by the loss of one, which is replaced."""
    names = [f"worker-{number}-0" for number in range(NODES)]
    time_ = 1000.0
    yield job.MasterClaimed(time=time_, epoch=1, address="a:1")
    for index, name in enumerate(names):
        yield job.NodeRequested(time=time_, node=name, role="worker", index=index, launch=0, host=f"host-{index}")
    for number in range(1, ROUNDS + 1):
        for index, name in enumerate(names):
            yield job.NodeJoined(
                time=time_ + 20 + index * 0.01, node=name, host=f"host-{index}", slots=8, address="10.0.0.1:4000",
                master_port=2000, holdings=(Holding(number, 1),), after_round=number - 1, checked=2.0,
            )  # fmt: skip
        time_ += 31
        members = tuple(Member(name, f"host-{index}", "10.0.0.1:4000", 8) for index, name in enumerate(names))
        yield job.RoundFormed(
            time=time_, round=Round(number, {"worker": members}, "10.0.0.1", 2000, None, "all joined")
        )
        time_ += 10 + ITERATIONS / ROUNDS + 5
        lost_node = number * 37 % NODES
        yield job.NodeLost(time=time_, node=names[lost_node], reason=job.Reason.NODE_LOST)
        yield job.RoundBroken(time=time_, round=number, reason=job.Reason.NODE_LOST, detail="", node=names[lost_node])
        names[lost_node] = f"worker-{lost_node}-{number}"
        yield job.NodeRequested(
            time=time_, node=names[lost_node], role="worker", index=lost_node, launch=number, host="spare"
        )


def telemetry() -> Iterator[dict[str, object]]:
    """An iteration a second by rank 0; a restore by every rank in each round."""
    begin = 1000.0
    each = ITERATIONS // ROUNDS
    for number in range(1, ROUNDS + 1):
        begin += 31
        for rank in range(NODES * 8):
            yield {
                "kind": "restored", "time": begin + 8, "round": number, "rank": rank, "seconds": 8.0,
                "from_round": number - 1, "iteration": (number - 1) * each,
                "source": "memory" if rank % 8 else "peer worker-0-0",
            }  # fmt: skip
        for at in range(each):
            yield {
                "time": begin + 11 + at, "round": number, "iteration": (number - 1) * each + at + 1, "rank": 0,
                "seconds": 1.0, "stall_s": 0.02, "loss": 3.0, "tokens": 1 << 20,
            }  # fmt: skip
        begin += 10 + each + 5


def write(folder: Path) -> None:
    """The store of that job."""
    store = open_store(str(folder))
    body = b"".join(msgspec.json.encode(record) + b"\n" for record in journal())
    store.put("jobs/u-train/journal/000001", body)
    lines = list(telemetry())
    for at in range(0, len(lines), 2000):
        text = "".join(json.dumps({"v": 1, "node": "worker-0-0", **line}) + "\n" for line in lines[at : at + 2000])
        store.put(f"jobs/u-train/telemetry/000001-{at:06d}.jsonl", text.encode())


def measure_here(folder: Path) -> Cost:
    """Make the page in this process."""
    began = time.perf_counter()
    from everstep.runtime.report import WorkflowFacts, read_run, render

    page = render(
        read_run(open_store(str(folder), read_only=True), "big", facts=WorkflowFacts(uid="u", phase="Running")),
        20_000.0,
    )
    seconds = time.perf_counter() - began
    return Cost(
        seconds, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, len(page.encode())
    )


def measure() -> Cost:
    """Make the page in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="everstep-report-") as place:
        write(Path(place))
        command = [sys.executable, "-m", "benchmarks.report", "--store", place]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return msgspec.json.decode(output, type=Cost)


def main() -> None:
    """Measure, print, exit 1 if the budget is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="measure the job in that store, in this process, as JSON")
    options = parser.parse_args()
    if options.store:
        print(msgspec.json.encode(measure_here(options.store)).decode())
        return
    cost = measure()
    print(f"{NODES} nodes, {ITERATIONS} iterations: {cost} (budget {SECONDS:.0f} s, 500 MiB, 5 MiB)")
    sys.exit(0 if cost.holds else 1)


if __name__ == "__main__":
    main()
