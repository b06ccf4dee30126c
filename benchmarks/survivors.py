"""kill -9 of one rank until all have finished the next iteration, where the others keep their processes; and growth.

    python -m benchmarks.survivors --kills 20 --ranks 2 4

The default model (about 5 million parameters) and its default batch, one worker a node. Beside it, in the same run, the
same script with workers that start anew. The budget counts iterations of the same training, undisturbed, as a kill
costs the iteration that it interrupts. Growth counts what 2 ranks lose when a third comes.
"""

import argparse
import random
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recovery import make_dataset
from tests.harness import ROOT, TrainStep, kill

LLAMA = ROOT / "steps" / "train" / "llama.py"
FIXED_S, ITERATIONS = 0.25, 1.2
GROWTH_S = 0.3
PAUSE_S = 0.3
"""Longer than an iteration, so that kills come at random moments."""
SURVIVE, ANEW = "@everstep.main\ndef main(job: everstep.Context)", "def main(job: everstep.Context)"


@dataclass(frozen=True)
class Series:
    """Kills of one training."""

    ranks: int
    survives: bool
    seconds: Sequence[float]
    """From each kill to the first report of an iteration that no round had finished before."""
    iteration_s: float
    """Median of the iterations that no kill disturbed."""
    lost: int
    """Iterations computed again, at most."""
    kept: int
    """Seats that a worker took in the process of its round before."""
    expected: int
    """Seats that were to be taken so: each rank but the killed one, at each kill."""

    @property
    def budget_s(self) -> float:
        return FIXED_S + ITERATIONS * self.iteration_s


def script(folder: Path, survives: bool) -> Path:
    """The default script, or a copy of it whose workers start anew in each round."""
    if survives:
        return LLAMA
    text = LLAMA.read_text()
    assert SURVIVE in text
    call = '\nif __name__ == "__main__":\n    main()\n'
    assert text.endswith(call)
    copy = folder / "llama_anew.py"
    copy.write_text(text.replace(SURVIVE, ANEW).removesuffix(call) + call.replace("main()", "main(everstep.init())"))
    return copy


def kills(folder: Path, dataset: str, count: int, ranks: int, survives: bool = True, seed: int = 0) -> Series:
    """Kill `count` random ranks of one training, some iterations apart."""
    choose = random.Random(seed)
    place = folder / f"{'survive' if survives else 'anew'}-{ranks}"
    place.mkdir(parents=True)
    run = TrainStep(
        place / "run",
        place / "store",
        flags={
            "dataset": dataset, "script": str(script(place, survives)), "nodes": str(ranks), "min-nodes": str(ranks),
            "iterations": str(20 * count + 40), "persist-interval": "50",
        },
    )  # fmt: skip
    run.start()
    moments: list[float] = []
    kept = expected = 0
    try:
        reached = run.wait_iteration(10)
        for number in range(count):
            threading.Event().wait(choose.random() * PAUSE_S)
            before = run.iteration()
            workers = run.workers()
            victim = choose.choice(workers)
            moments.append(kill(victim))
            reached = run.wait_iteration(max(reached, before) + choose.randrange(6, 14))
            others = {worker.pid for worker in workers} - {victim.pid}
            expected += len(others)
            kept += len(others & {worker.pid for worker in run.workers()})
            print(f"{ranks} ranks: kill {number + 1}/{count} at iteration {before}", file=sys.stderr)
        run.wait_iteration(reached + 5)
    finally:
        run.kill_all()
    lines = [line for line in run.telemetry() if "loss" in line]
    costs = [_cost(moment, lines) for moment in moments]
    calm = statistics.median(line["seconds"] for line in lines)
    return Series(ranks, survives, [one[0] for one in costs], calm, max(one[1] for one in costs), kept, expected)


def _cost(killed: float, lines: Sequence[dict[str, Any]]) -> tuple[float, int]:
    """Seconds until a new iteration was finished, and how many had to be computed again."""
    before = max((line["iteration"] for line in lines if line["time"] <= killed), default=0)
    after = next(line for line in lines if line["time"] > killed and line["iteration"] > before)
    first = next(line for line in lines if line["time"] > killed and line["round"] == after["round"])
    return after["time"] - killed, max(0, before - first["iteration"] + 1)


def growth(folder: Path, dataset: str) -> tuple[float, float]:
    """From 2 to 3 ranks: the gap between the last report of the old round and the first of the new one, beyond an
    iteration; and the median iteration before."""
    place = folder / "growth"
    run = TrainStep(
        place / "run",
        place / "store",
        flags={"dataset": dataset, "nodes": "3", "min-nodes": "2", "iterations": "100000", "replacement-wait-s": "1"},
    )
    run.start()
    try:
        run.wait_iteration(10)
        kill(run.agents()[2])
        run.wait_iteration(run.iteration() + 60)
    finally:
        run.kill_all()
    lines = [line for line in run.telemetry() if "loss" in line]
    rounds = [record["round"] for record in run.records() if record["kind"] == "RoundFormed"]
    formed = {round_["number"]: len(round_["members"]["worker"]) for round_ in rounds}
    last = next(number for number, size in formed.items() if size == 3 and formed.get(number - 1) == 2)
    old, new = ([line for line in lines if line["round"] == number] for number in (last - 1, last))
    calm = statistics.median(line["seconds"] for line in old)
    return new[0]["time"] - old[-1]["time"] - new[0]["seconds"], calm


def measure(folder: Path, dataset: str, count: int, ranks: Sequence[int]) -> Iterator[Series]:
    """Both ways to live, for each number of ranks."""
    for many in ranks:
        for survives in (True, False):
            yield kills(folder, dataset, count, many, survives)


def describe(series: Series) -> str:
    """Median and maximum, and the iteration beside which they are to be read."""
    median, most = statistics.median(series.seconds), max(series.seconds)
    return f"median {median:.2f} s, maximum {most:.2f} s; an iteration takes {series.iteration_s:.2f} s"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a token dataset; default: made here from this Python's own text")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        folder = Path(name)
        dataset = options.dataset or make_dataset(folder)
        print("| workers | kill -> next iteration | budget | iterations lost, at most | processes kept |")
        print("|---|---|---|---|---|")
        for one in measure(folder, dataset, options.kills, options.ranks):
            what = f"{one.ranks} ranks, {'survivors' if one.survives else 'all anew'}"
            budget = f"{one.budget_s:.2f} s" if one.survives else "-"
            print(f"| {what} | {describe(one)} | {budget} | {one.lost} | {one.kept} of {one.expected} |", flush=True)


if __name__ == "__main__":
    main()
