"""The node check on this machine: `python -m benchmarks.node_check`. Budget: 2 nodes on one host, in total, <= 30 s.

Runs the step as a pipeline does, in a fresh process: imports, processes, every round, the verdict.
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

BUDGET_S = 30.0


def check(nodes: int, fault: str = "") -> tuple[float, int, str]:
    """Seconds of one whole check, its rounds, and its result: `healthy`, or the nodes that it names."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "faults"
        marks.mkdir()
        command = [sys.executable, "-m", "everstep.steps.check", f"--nodes={nodes}", f"--store={folder}/store"]
        environment = {**os.environ, "EVERSTEP_FAULT": fault, "EVERSTEP_FAULT_DIR": str(marks)}
        started = time.monotonic()
        subprocess.run([*command, f"--outputs={folder}/out"], env=environment, check=True, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        verdict = json.loads((Path(folder) / "out/verdict.json").read_text())
    words = [f"{word} {', '.join(verdict[word])}" for word in ("faulty", "stragglers", "undecided") if verdict[word]]
    return seconds, len(verdict["rounds"]), "  ".join(words) or "healthy"


def silent_fault(node: str, rounds: int) -> str:
    """A fault that appears only in a group, in each round."""
    return ";".join(f"check.all_reduce,node={node},round={number}=raise" for number in range(1, rounds + 1))


def main() -> None:
    """Print the table; exit code 1 if the budget is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.node_check", description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="how often each check runs (default: 5)")
    times = parser.parse_args().times
    print(f"{'what':<44}{'median':>9}{'maximum':>9}{'rounds':>8}  found")
    over = 0.0
    for what, nodes, fault in (
        ("2 nodes, healthy", 2, ""),
        ("2 nodes, one dies in its products", 2, "check.matmul,node=local-1=kill"),
        ("4 nodes, with one every group fails", 4, silent_fault("local-1", 2)),
        ("5 nodes, with one every group fails", 5, silent_fault("local-2", 3)),
    ):
        runs = [check(nodes, fault) for _ in range(times)]
        seconds = [run[0] for run in runs]
        if nodes == 2:
            over = max(over, *seconds)
        rounds, seen_words = max(run[1] for run in runs), ", ".join(sorted({run[2] for run in runs}))
        print(f"{what:<44}{statistics.median(seconds):>7.1f} s{max(seconds):>7.1f} s{rounds:>8}  {seen_words}")
    print(
        f"2 nodes on one host, at most: {over:.1f} s, budget {BUDGET_S:g} s: {'holds' if over <= BUDGET_S else 'NOT'}"
    )
    sys.exit(0 if over <= BUDGET_S else 1)


if __name__ == "__main__":
    main()
