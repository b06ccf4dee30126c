"""kill -9 of one rank until all have finished the next iteration, where the others keep their processes; and growth.

    python -m benchmarks.survivors --kills 20 --ranks 2 --ranks 4 --ways compiled
    python -m benchmarks.survivors --kills 200 --ranks 2 --ways compiled --compare

The default model (about 5 million parameters) and its default batch, one worker a node. The ways: `compiled` by
torch.compile, with a warm spare on each node; `spares`, not compiled; `survivors` without spares; `anew`: workers that
start anew. The budget counts iterations of the same training, undisturbed, as a kill costs the iteration that it
interrupts. Growth counts what 2 ranks lose when a third comes. `--compare` trains again without kills, and compares the
weights.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.recovery import Parts, cost_of, make_dataset
from everstep.runtime.watch.board import read_board
from tests.harness import ROOT, TrainStep, kill, tensors, wait_until

LLAMA = ROOT / "steps" / "train" / "llama.py"
FIXED_S, ITERATIONS = 0.25, 1.2
GROWTH_S = 0.3
FIRST_S = 1800.0
"""What is compiled for the first time takes a minute of two idle cores."""
UNDISTURBED_S = 7200.0
"""200 kills take some 4,700 iterations; nothing is timed in the training that repeats them."""
PAUSE_S = 0.3
"""Longer than an iteration, so that kills come at random moments."""
SURVIVE, ANEW = "@everstep.main\ndef main(job: everstep.Context)", "def main(job: everstep.Context)"
REPORT = "everstep.report(loss="
COUNTED = 'everstep.report(graphs=job.mean(float(counters["stats"]["unique_graphs"])), loss='
COUNTERS = "from torch._dynamo.utils import counters\n"
CALL = "\n    main()\n"


def budget_of(iteration_s: float) -> float:
    """Seconds that a kill may take where an iteration takes so many."""
    return FIXED_S + ITERATIONS * iteration_s


class Way(NamedTuple):
    """How a training's workers live."""

    name: str
    survives: bool = True
    spares: bool = False
    compiled: bool = False


RANKS = (2, 4)
COMPILED = "compiled"
WAYS = {
    way.name: way
    for way in (
        Way(COMPILED, spares=True, compiled=True),
        Way("spares", spares=True),
        Way("survivors"),
        Way("anew", survives=False),
    )
}


@dataclass(frozen=True)
class Series:
    """Kills of one training."""

    ranks: int
    way: Way
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
    graphs: tuple[float, float]
    """Graphs that torch.compile has made, per process: in the first round and at most in the last ones."""
    compared: int = 0
    """The iteration whose weights were compared with an undisturbed training's; 0: none."""
    equal: bool = True
    """Were they equal bit for bit?"""
    load: float = 0.0
    """The machine's load average during the kills."""
    parts: Sequence[Parts] = ()
    """Where the seconds of each kill went."""

    @property
    def budget_s(self) -> float:
        return budget_of(self.iteration_s)

    @property
    def within(self) -> int:
        """Kills within the budget."""
        return sum(seconds <= self.budget_s for seconds in self.seconds)


def script(folder: Path, way: Way) -> Path:
    """A copy of the default script that also reports how much was compiled, or starts anew in each round."""
    text = LLAMA.read_text()
    assert SURVIVE in text
    assert REPORT in text
    assert text.endswith(CALL)
    text = text.replace("import torch\n", f"import torch\n{COUNTERS}", 1).replace(REPORT, COUNTED)
    if not way.survives:
        text = text.replace(SURVIVE, ANEW).removesuffix(CALL) + CALL.replace("main()", "main(everstep.init())")
    copy = folder / "llama_copy.py"
    copy.write_text(text)
    return copy


def training(folder: Path, dataset: str, count: int, ranks: int, way: Way) -> TrainStep:
    """The training that the kills disturb."""
    folder.mkdir(parents=True)
    flags = {
        "dataset": dataset, "script": str(script(folder, way)), "nodes": str(ranks), "min-nodes": str(ranks),
        "iterations": str(400 * count + 400), "persist-interval": "100", "keep-last": "0",
        "spares": str(int(way.spares)), **({"script-args": "--compile"} if way.compiled else {}),
    }  # fmt: skip
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(folder.parent / "compiled"))
    return TrainStep(folder / "run", folder / "store", flags=flags, environment={"TORCHINDUCTOR_CACHE_DIR": compiled})


def kills(folder: Path, dataset: str, count: int, ranks: int, way: Way, seed: int = 0, compare: bool = False) -> Series:
    """Kill `count` random ranks of one training, some iterations apart, each when its node has a warm spare."""
    choose = random.Random(seed)
    run = training(folder / f"{way.name}-{ranks}", dataset, count, ranks, way)
    run.start()
    moments: list[float] = []
    survivors_kept = expected = newest = 0
    load: list[float] = []
    weights: Mapping[str, bytes] = {}
    try:
        reached = wait_until(lambda: run.iteration() >= 10 or run.over(), "ten iterations", FIRST_S)
        for number in range(count):
            if way.spares:
                wait_until(lambda: warm_spares(run) >= ranks or run.over(), "warm spares", FIRST_S)
                reached = run.iteration()
            threading.Event().wait(choose.random() * PAUSE_S)
            before, workers = run.iteration(), seated_ranks(run, ranks)
            victim = choose.choice(workers)
            moments.append(kill(victim))
            load.append(os.getloadavg()[0])
            reached = run.wait_iteration(max(reached, before) + choose.randrange(6, 14))
            other_ranks = {worker.pid for worker in workers} - {victim.pid}
            expected += len(other_ranks)
            survivors_kept += len(other_ranks & {worker.pid for worker in seated_ranks(run, ranks)})
            print(f"{ranks} ranks, {way.name}: kill {number + 1}/{count} at iteration {before}", file=sys.stderr)
        wait_until(
            lambda: any(line.get("iteration", 0) >= reached for line in run.telemetry()) or run.over(),
            "the telemetry of what follows the last kill", FIRST_S,
        )  # fmt: skip
        if compare:
            newest, weights = newest_checkpoint(run, after=reached)
        run.wait_iteration(reached + 5)
    finally:
        run.kill_all()
    lines = [line for line in run.telemetry() if "loss" in line]
    records, telemetry = run.records(), run.telemetry()
    costs = [cost_of(moment, records, telemetry) for moment in moments]
    calm = statistics.median(line["seconds"] for line in lines)
    for number, (cost, parts) in enumerate(costs, 1):
        if cost.seconds > budget_of(calm):
            print(f"kill {number} took {cost.seconds:.2f} s: {parts}", file=sys.stderr, flush=True)
    equal = not newest or weights == undisturbed_run(folder, dataset, count, ranks, way, newest)
    return Series(
        ranks, way, [cost.seconds for cost, _ in costs], calm, max(cost.lost for cost, _ in costs), survivors_kept,
        expected,
        _graphs(lines), newest, equal, statistics.mean(load), [parts for _, parts in costs],
    )  # fmt: skip


def undisturbed_run(
    folder: Path, dataset: str, count: int, ranks: int, way: Way, iteration: int
) -> Mapping[str, bytes]:
    """The tensors of that iteration in a training that nothing happens to."""
    run = training(folder / f"{way.name}-{ranks}-calm", dataset, count, ranks, way._replace(spares=False))
    run.start()
    try:
        return tensors(wait_until(lambda: _folders(run).get(iteration), f"iteration {iteration}", UNDISTURBED_S, 0.2))
    finally:
        run.kill_all()


def newest_checkpoint(run: TrainStep, after: int) -> tuple[int, Mapping[str, bytes]]:
    """The first checkpoint in the store of an iteration after that one, and its tensors."""

    def next_iteration() -> int:
        return min((iteration for iteration in _folders(run) if iteration > after), default=0)

    iteration = wait_until(next_iteration, "a checkpoint after the last kill", 600.0, 0.2)
    return iteration, tensors(_folders(run)[iteration])


def _folders(run: TrainStep) -> dict[int, Path]:
    """Committed checkpoints in the store, by their iteration."""
    manifests = (Path(run.store) / "jobs").glob("*/checkpoints/*/manifest.json")
    return {int(path.parent.name.rpartition("-")[2]): path.parent for path in manifests}


def seated_ranks(run: TrainStep, ranks: int) -> list[psutil.Process]:
    """The workers that have a seat: those with a board."""

    def processes() -> list[psutil.Process]:
        paths = [path for folder in run.folders() for path in folder.glob("board-*") if not path.suffix]
        pids = [board.pid for path in paths if (board := read_board(path)) is not None]
        return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)] if len(pids) == ranks else []

    return wait_until(processes, "a board of each rank")


def warm_spares(run: TrainStep) -> int:
    """How many spares are warm now, as the nodes' logs say."""
    text = "".join(path.read_text() for path in run.node_logs())
    return text.count("a spare is warm") - text.count("come from warm spares") - text.count("a spare ended")


def _graphs(lines: Sequence[dict[str, Any]]) -> tuple[float, float]:
    counts = [line["graphs"] for line in lines]
    return counts[0], max(counts)


def growth(folder: Path, dataset: str) -> tuple[float, float]:
    """From 2 to 3 ranks: the gap between the last report of the old round and the first of the new one, beyond the
    median of the next iterations; and that median."""
    place = folder / "growth"
    run = TrainStep(
        place / "run",
        place / "store",
        flags={
            "dataset": dataset, "nodes": "3", "min-nodes": "2", "iterations": "100000", "replacement-wait-s": "1",
            "spares": "1",
        },
    )  # fmt: skip
    run.start()
    try:
        run.wait_iteration(10)
        kill(run.agents()[2])
        run.wait_iteration(run.iteration() + 60)
        wait_until(lambda: len(run.agents()) == 3 and _sizes(run)[-1:] == [3], "the third node", 240.0, 0.1)
        run.wait_iteration(run.iteration() + 10)
    finally:
        run.kill_all()
    lines = [line for line in run.telemetry() if "loss" in line]
    sizes = _sizes(run)
    last = next(number for number in range(len(sizes), 1, -1) if sizes[number - 2 : number] == [2, 3])
    old, new = ([line for line in lines if line["round"] == number] for number in (last - 1, last))
    calm = statistics.median(line["seconds"] for line in new[1:])  # The first waits for the newcomer's state.
    return new[0]["time"] - old[-1]["time"] - calm, calm


def _sizes(run: TrainStep) -> list[int]:
    """How many nodes each round had."""
    rounds = [record["round"] for record in run.records() if record["kind"] == "RoundFormed"]
    return [len(round_["members"]["worker"]) for round_ in rounds]


def measure(
    folder: Path, dataset: str, count: int, ranks: Sequence[int] | None, ways: Sequence[str] | None, compare: bool
) -> Iterator[Series]:
    """Each way to live, for each number of ranks; None: the default."""
    for many in ranks or RANKS:
        for name in ways or [COMPILED]:
            yield kills(folder, dataset, count, many, WAYS[name], compare=compare)


def describe(series: Series) -> str:
    """Median and maximum, and the iteration beside which they are to be read."""
    median, most = statistics.median(series.seconds), max(series.seconds)
    return (
        f"median {median:.2f} s, maximum {most:.2f} s; an iteration takes {series.iteration_s:.2f} s; "
        f"load {series.load:.1f}"
    )


def describe_parts(series: Series) -> str:
    """Median and minimum of each part."""
    each = {field.name: [getattr(part, field.name) for part in series.parts] for field in fields(Parts)}
    return ", ".join(f"{name} {statistics.median(some):.3f} ({min(some):.3f})" for name, some in each.items())


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of what is measured."""
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, action="append", help=f"may be given twice; default: {RANKS}")
    parser.add_argument("--ways", action="append", choices=WAYS, help=f"may be given twice; default: {COMPILED}")
    parser.add_argument("--compare", action="store_true", help="also train undisturbed, and compare the weights")
    parser.add_argument("--dataset", default="", help="a token dataset; default: made here from this Python's own text")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        folder = Path(name)
        dataset = options.dataset or make_dataset(folder)
        print("| workers | kill -> next iteration | budget, within | lost | processes kept | graphs | weights |")
        print("|---|---|---|---|---|---|---|")
        for series in measure(folder, dataset, options.kills, options.ranks, options.ways, options.compare):
            budget = f"{series.budget_s:.2f} s, {series.within} of {len(series.seconds)}"
            weights = (
                f"equal at {series.compared}"
                if series.compared and series.equal
                else "DIFFER"
                if series.compared
                else "-"
            )
            print(
                f"| {series.ranks} ranks, {series.way.name} | {describe(series)} | {budget} | {series.lost} "
                f"| {series.kept} of {series.expected} | {series.graphs[0]:g} -> {series.graphs[1]:g} | {weights} |",
                flush=True,
            )
            print(f"  seconds, median (minimum): {describe_parts(series)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
