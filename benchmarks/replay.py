"""What it costs that another rank computes a certified state's last gradients again, in a real training.

    python -m benchmarks.replay --nodes 3 --iterations 150

The default script trains, and does so every few iterations. These are compared with the others of the same run, so a
busy machine slows both down.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.acceptance import Line, judge
from benchmarks.certified import MOST_SHARE, seconds_of_a_comparison
from everstep.steps.train.config import REPLAYED_EVERY
from tests.harness import TrainStep
from tests.survival.conftest import write_dataset

EVERY = 5
"""Iterations between two replays of the measurement."""
WARM_UP = 20
"""Iterations that are not counted."""


def train(folder: Path, nodes: int, iterations: int) -> list[dict[str, Any]]:
    """What rank 0 reported."""
    (folder / "dataset").mkdir()
    write_dataset(folder / "dataset")
    flags = {
        "dataset": str(folder / "dataset"), "nodes": str(nodes), "iterations": str(iterations),
        "global-batch": str(4 * nodes), "certify-interval": str(EVERY), "persist-interval": str(100 * EVERY),
        "certify-replay": "true", "micro-batch": "2",
    }  # fmt: skip
    run = TrainStep(folder / "run", folder / "store", flags=flags)
    run.start()
    try:
        assert run.finish() == 0, run.last_words()
        return [line for line in run.telemetry() if line.get("rank") == 0 and "loss" in line]
    finally:
        run.kill_all()


def seconds_by_replay(reports: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """(Median seconds of an iteration with a replay, of one without)."""
    with_replay, without = [], []
    for before, line in pairwise(sorted(reports, key=lambda line: line["iteration"])):
        if line["iteration"] > WARM_UP:
            (without if line["iteration"] % EVERY else with_replay).append(line["time"] - before["time"])
    return statistics.median(with_replay), statistics.median(without)


def main() -> None:
    """Train, compare, print; exit code 1 if it costs too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=150)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everstep-replay-"))
    try:
        longer, usual = seconds_by_replay(train(folder, options.nodes, options.iterations))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    replay, comparison = longer / usual - 1, seconds_of_a_comparison() / usual
    share = (replay + comparison) / REPLAYED_EVERY
    judge([
        Line("an iteration without a replay, with one", "told", f"{usual:.3f} s, {longer:.3f} s", True),
        Line(f"replay and comparison every {REPLAYED_EVERY} iterations", f"<= {MOST_SHARE:.0%} of the time",
             f"{share:.2%}: {replay:.2f} and {comparison:.3f} iterations", share <= MOST_SHARE),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
