"""What copies in other nodes' memory cost a save: `python -m benchmarks.peer_copies`.

A train step with three nodes on this machine, whose ranks each stage a part of their own and do nothing else, with no
copy, one and two. Told are a save's stall when a pause follows each save, and how long a save takes when none does:
then it waits for the copies of the one before. The network is the loopback; all nodes share the cores of one machine
and the memory's bandwidth, so the second figure errs upwards.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.harness import TrainStep

NODES = 3
SCRIPT = Path(__file__).with_name("peer_copies_rank.py")


def measure(copies: int, mib: int, saves: int, pause_s: float) -> tuple[float, float]:
    """Seconds of a save, the medians of the slowest ranks: after a pause, and one after the other."""
    with tempfile.TemporaryDirectory(prefix="everstep-benchmark-") as name:
        folder = Path(name)
        flags = {
            "script": str(SCRIPT), "script-args": f"{folder} {mib} {saves} {pause_s}", "nodes": str(NODES),
            "min-nodes": str(NODES), "peer-copies": str(copies), "persist-interval": "1000000",
            "network-check": "False",
        }  # fmt: skip
        step = TrainStep(folder / "run", folder / "store", flags=flags)
        try:
            step.start()
            if step.finish():
                raise RuntimeError(step.last_words())
        finally:
            step.kill_all()
        of_ranks = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    paused, dense = ([max(times) for times in zip(*part, strict=True)] for part in zip(*of_ranks, strict=True))
    return statistics.median(paused), statistics.median(dense)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="of each rank's part")
    parser.add_argument("--saves", type=int, default=10, help="of each kind")
    parser.add_argument("--pause-s", type=float, default=2.0, help="between two saves")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; told is the median")
    options = parser.parse_args()
    table = Table("copies", "a save after a pause", "one after the other", "load")
    took: dict[int, list[tuple[float, float]]] = {copies: [] for copies in (0, 1, 2)}
    for _ in range(options.rounds):
        for copies, measured in took.items():
            measured.append(measure(copies, options.mib, options.saves, options.pause_s))
            print(f"{copies} copies: {measured[-1]}, load {os.getloadavg()[0]:.0f}", file=sys.stderr)
    for copies, measured in took.items():
        paused, dense = (statistics.median(times) for times in zip(*measured, strict=True))
        table.add_row(f"{copies}", f"{paused * 1e3:.0f} ms", f"{dense * 1e3:.0f} ms", f"{os.getloadavg()[0]:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
