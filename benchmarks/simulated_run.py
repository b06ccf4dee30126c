"""How well the simulator foretells a real run: 4 local nodes, 10 faults in 10 minutes, and the same in virtual time.

    python -m benchmarks.simulated_run --minutes 10 --faults 10 --seed 1

A shorter run with faults of its own is the calibration: what an iteration, a killed process and a new node cost. The
second run's faults, as they fired, are the simulator's trace. Compared are the iterations done in the time. Each sample
takes a fixed time, as on a device of its own, so that fewer nodes are slower.
"""

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.acceptance import Line, judge
from benchmarks.soak.recoveries import new_iterations, standstill
from everstep.runtime.chaos import Fault, FiredFault, Kind
from everstep.runtime.chaos.on_machine import MachineInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.simulation import COSTS, Costs, Failure, Policy, Trace, simulate
from everstep.runtime.store import open_store
from tests.harness import TrainStep
from tests.survival.conftest import write_dataset

NODES, BATCH, SAMPLE_S = 4, 12, 0.1
NEAR = 0.15
SCRIPT = Path(__file__).parent / "soak" / "train.py"
CALIBRATION_S, CALIBRATION_FAULTS = 150.0, 4
AFTER_S = 1.0


@dataclass(frozen=True)
class Observed:
    """A real run."""

    began: float
    """When the first iteration was done (Unix time)."""
    seconds: float
    fired: list[FiredFault]
    moments: list[float]
    """When each new iteration was done."""
    records: list[dict[str, object]]

    @property
    def iterations(self) -> int:
        """Done in the time."""
        return sum(self.began < moment <= self.began + self.seconds for moment in self.moments)


def faults(seconds: float, count: int, seed: int) -> list[tuple[float, Kind]]:
    """When which fault comes: processes and nodes, never two within a minute of each other's recovery."""
    chance = random.Random(seed)
    every = seconds / (count + 1)
    kinds = [Kind.CRASH if number % 2 else Kind.NODE for number in range(count)]
    chance.shuffle(kinds)
    return [(every * (number + 1) + chance.uniform(-0.2, 0.2) * every, kind) for number, kind in enumerate(kinds)]


def train(folder: Path, seconds: float, planned: Sequence[tuple[float, Kind]], seed: int) -> Observed:
    """Train that long through these faults."""
    folder.mkdir()
    flags = {
        "dataset": str(folder.parent / "dataset"), "script": str(SCRIPT),
        "script-args": f"--sample-pause {SAMPLE_S}", "sequence-length": "64", "iterations": "100000",
        "global-batch": str(BATCH), "persist-interval": "20", "nodes": str(NODES),
        "job-spec": json.dumps({"replicaSpecs": {"worker": {"replicas": NODES, "minReplicas": 1}},
                                "patience": {"maxRelaunches": 100, "maxRestarts": 100}}),
    }  # fmt: skip
    run = TrainStep(folder / "run", folder / "store", flags=flags)
    run.start()
    try:
        run.wait_iteration(5)
        began = time.time()
        fired = asyncio.run(_inject(run, planned, began, seed))
        time.sleep(max(0.0, began + seconds - time.time()))
        time.sleep(6.0)  # Until the last of it is in the store.
        return Observed(began, seconds, fired, new_iterations(run.telemetry()), run.records())
    finally:
        run.kill_all()


async def _inject(run: TrainStep, planned: Sequence[tuple[float, Kind]], began: float, seed: int) -> list[FiredFault]:
    progress = Progress(open_store(str(run.store), read_only=True), run.jobs()[0])
    injector, fired = MachineInjector(run.folder, "", progress, random.Random(seed)), []
    for at, kind in planned:
        await asyncio.sleep(max(0.0, began + at - time.time()))
        fired.append(await injector.inject(Fault(kind)))
        print(f"{at:6.1f} s  {kind:8} {fired[-1].node}", file=sys.stderr)
    return fired


def calibrate(observed: Observed) -> Costs:
    """Costs as that run shows them."""
    gaps = [later - sooner for sooner, later in pairwise(observed.moments)]
    iteration = statistics.median(gaps)
    killed = [injection for injection in observed.fired if injection.kind is Kind.CRASH]
    stood = statistics.median(
        standstill(observed.moments, injection.time, injection.time + AFTER_S) for injection in killed
    )
    base = COSTS["local"]
    fixed = base.detect_s + base.stop_s + base.restore_s
    return replace(base, source="calibrated", iteration_s=iteration, init_s=max(0.0, stood - iteration - fixed),
                   node_s=statistics.median(_starts(observed.records)))  # fmt: skip


def _starts(records: Sequence[dict[str, object]]) -> list[float]:
    """Seconds from the request of each replacement to its join."""
    requested_at: dict[str, float] = {}
    starts = []
    for record in records:
        name, moment = str(record.get("node")), float(str(record["time"]))
        if record["kind"] == "NodeRequested":
            requested_at[name] = moment
        elif record["kind"] == "NodeJoined" and (since := requested_at.pop(name, None)) and not name.endswith("-0"):
            starts.append(moment - since)
    return starts


def foretell(observed: Observed, costs: Costs) -> float:
    """Iterations that the simulator expects in the same time with the same faults."""
    machines = [int(injection.node.split("-")[1]) for injection in observed.fired]
    failures = tuple(
        Failure(injection.time - observed.began, (machine,), process=injection.kind is Kind.CRASH)
        for injection, machine in zip(observed.fired, machines, strict=True)
    )
    outcome = simulate(NODES, Trace(observed.seconds, NODES, failures), Policy("default"), costs)
    return outcome.useful_s / costs.iteration_s


def main() -> None:
    """Calibrate, train, simulate, compare; exit code 1 if they are further apart than allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder, seconds = Path(tempfile.mkdtemp(prefix="everstep-foretell-")), options.minutes * 60
    try:
        (folder / "dataset").mkdir()
        write_dataset(folder / "dataset")
        first = train(folder / "calibration", CALIBRATION_S, faults(CALIBRATION_S, CALIBRATION_FAULTS, 99), 99)
        costs = calibrate(first)
        planned = faults(seconds, options.faults, options.seed)
        observed = train(folder / "real", seconds, planned, options.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    expected, most = foretell(observed, costs), seconds / costs.iteration_s
    off = abs(expected - observed.iterations) / observed.iterations
    lost_time = most - observed.iterations
    summary_text = f"{observed.iterations} real, {expected:.0f} simulated, {most:.0f} without faults: {off:.1%} apart"
    more = f"{lost_time * costs.iteration_s:.0f} s real, {(most - expected) * costs.iteration_s:.0f} s simulated"
    calibrated = f"iteration {costs.iteration_s:.2f} s, restart {costs.init_s:.2f} s, node {costs.node_s:.1f} s"
    judge([
        Line("costs from the calibration", "told", calibrated, True),
        Line(f"iterations in {seconds:.0f} s with {len(observed.fired)} faults", f"within {NEAR:.0%}",
             summary_text, off <= NEAR),
        Line("seconds lost to faults", "told", more, True),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
