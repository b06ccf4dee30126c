"""`make soak`: a training of 4 nodes under over 100 faults in half an hour, and what is left of it.

    python -m benchmarks.soak --minutes 5 --seed 1

Each line is a fault: when it came, to which node, how long no new iteration was finished. The same seed gives the same
kinds at the same times; which processes they find is up to the machine. Exit code 1: something did not hold.
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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.acceptance import Line, judge
from benchmarks.soak.recoveries import AFTER_S, Recovery, new_iterations, standstill, table
from benchmarks.soak.schedule import KINDS, LEFT_OUT, PlannedFault, plan
from benchmarks.soak.watch import Sample, sample, trends
from everstep.runtime.chaos import FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.chaos.on_machine import MachineInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.store import open_store
from tests.harness import TrainStep, job_mark, tensors
from tests.survival.conftest import write_dataset

SCRIPT = Path(__file__).with_name("train.py")

MEDIAN_S, LONGEST_S = 1.0, 10.0
PAUSE_S = 0.1
"""Of each iteration, so that the undisturbed training afterwards, without a pause, is much shorter."""
MARGIN = 100
"""Iterations that are trained after the last fault; all ranks learn the last one before they reach it."""
LOOK_S, SAMPLE_S = 0.1, 5.0
TRIES, AGAIN_S = 5, 1.0
"""A fault whose victim was gone already is tried with another one, so many seconds later."""
LASTING = (Kind.FREEZE, Kind.SLOW, Kind.CPU, Kind.MEMORY, Kind.STORE, Kind.SLOW_DISK)


@dataclass
class Soak:
    """The training under fire."""

    run: TrainStep
    last: Path
    recoveries: list[tuple[FiredFault, str, float]] = field(default_factory=list)
    """Each fault, in which company it came, how long it lasted."""
    missed: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    restarts: int = 0

    async def keep_step(self) -> None:
        """Start the train step again when it was killed, as its executor does."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.run.over():
                if await asyncio.to_thread(self.progress().has_ended):
                    return
                self.run.start()
                self.restarts += 1

    def progress(self) -> Progress:
        """What its journal and its telemetry tell."""
        return Progress(open_store(str(self.run.store), read_only=True), self.run.jobs()[0])

    async def take_samples(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            with suppress(FileNotFoundError):
                self.samples.append(await asyncio.to_thread(sample, self.run))

    async def inject(self, planned: PlannedFault, seed: int) -> None:
        """Let it happen to whomever it finds."""
        injector = MachineInjector(self.run.folder, "", self.progress(), random.Random(seed))
        for attempt in range(1, TRIES + 1):
            try:
                fired = await injector.inject(planned.fault)
            except (NotFiredError, NotPossibleError, OSError) as error:
                if attempt == TRIES:
                    self.missed.append(f"{planned.fault.kind} at {planned.at_s:.0f} s: {error}")
                    return
                await asyncio.sleep(AGAIN_S)
                continue
            lasted = time.time() - fired.time if fired.kind in LASTING else 0.0
            self.recoveries.append((fired, planned.how, lasted))
            print(f"{planned.at_s:6.1f} s  {fired.kind:12} {fired.node:12} {fired.evidence}", file=sys.stderr)
            return

    async def train(self, planned: Sequence[PlannedFault], seed: int) -> int:
        """Train through all these faults; the last iteration."""
        self.run.start()
        await asyncio.to_thread(self.run.wait_iteration, 10)
        began = time.monotonic()
        keeping, sampling = asyncio.create_task(self.keep_step()), asyncio.create_task(self.take_samples())
        injections = []
        for number, fault in enumerate(planned):
            await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
            injections.append(asyncio.create_task(self.inject(fault, seed + number)))
        await asyncio.gather(*injections)
        sampling.cancel()
        end = self.run.iteration() + MARGIN
        self.last.write_text(str(end))
        await keeping
        return end


def flags(folder: Path, nodes: int, iterations: int, script_args: str) -> dict[str, str]:
    """Of the train step: the others go on at once without a lost node, and it is replaced."""
    role = {"replicas": nodes, "minReplicas": 1, "maxReplicas": nodes + 1, "resources": {"memory": "2Gi"}}
    patience = {"replacementWait": 0, "maxRelaunches": 1000, "maxRestarts": 1000, "coolDown": 5}
    return {
        "dataset": str(folder / "dataset"), "script": str(SCRIPT), "script-args": script_args, "sequence-length": "64",
        "iterations": str(iterations), "global-batch": "10", "persist-interval": "20", "nodes": str(nodes),
        "job-spec": json.dumps({"replicaSpecs": {"worker": role}, "patience": patience}),
    }  # fmt: skip


def soak(folder: Path, minutes: float, nodes: int, seed: int) -> tuple[Soak, list[Recovery], list[Line]]:
    """Train under faults, then without any, and compare."""
    (folder / "dataset").mkdir()
    write_dataset(folder / "dataset")
    last, most = folder / "last", round(minutes * 60 / PAUSE_S * 2) + 10 * MARGIN
    arguments = f"--pause {PAUSE_S} --last {last}"
    run = TrainStep(folder / "run", folder / "store", flags=flags(folder, nodes, most, arguments))
    soaked, planned = Soak(run, last), list(plan(minutes * 60, seed))
    try:
        end = asyncio.run(soaked.train(planned, seed))
        code, leftovers_found = run.started[-1].returncode, leftovers(run)
    finally:
        run.kill_all()
    moments = new_iterations(run.telemetry())
    recoveries = [
        Recovery(fired, how, standstill(moments, fired.time, fired.time + lasted + AFTER_S))
        for fired, how, lasted in sorted(soaked.recoveries, key=lambda entry: entry[0].time)
    ]
    lines = [
        Line("faults that fired", f"all of {len(planned)}", f"{len(recoveries)}", not soaked.missed),
        _exit_line(run, code),
        _weights_line(folder, run, nodes, end) if code == 0 else Line("weights", "the same", "none", False),
        Line("left: processes, shared memory, control groups", "nothing", "; ".join(leftovers_found[:3]) or "nothing",
             not leftovers_found),
        *_seconds_lines(recoveries),
        *(Line(f"{trend.what}: last quarter beside the first", "flat", f"{trend.first:.0f} -> {trend.last:.0f}",
               trend.is_flat)
          for trend in trends(soaked.samples)),
    ]  # fmt: skip
    return soaked, recoveries, lines


def _exit_line(run: TrainStep, code: int) -> Line:
    if code:
        print(run.last_words(), file=sys.stderr)
    return Line("the training ends well", "exit code 0", f"exit code {code}", code == 0)


def _weights_line(folder: Path, run: TrainStep, nodes: int, end: int) -> Line:
    """Compare with an undisturbed training that does no pauses."""
    calm = TrainStep(folder / "calm", folder / "calm-store", flags=flags(folder, nodes, end, "--pause 0"))
    calm.start()
    try:
        while calm.started[-1].poll() is None:
            time.sleep(LOOK_S)
        same = calm.started[-1].returncode == 0 and tensors(calm.checkpoint()) == tensors(run.checkpoint())
    finally:
        calm.kill_all()
    what = f"weights and optimizer after {end} iterations"
    return Line(what, "those of an undisturbed training", "the same" if same else "others", same)


def _seconds_lines(recoveries: Sequence[Recovery]) -> list[Line]:
    killed = [recovery.seconds for recovery in recoveries if recovery.fired.kind not in LASTING]
    every = [recovery.seconds for recovery in recoveries]
    median, longest = statistics.median(killed), max(every)
    slow = sum(seconds > LONGEST_S for seconds in every)
    return [
        Line("median from a kill to the next iteration", f"<= {MEDIAN_S:g} s", f"{median:.2f} s", median <= MEDIAN_S),
        Line("the longest of all", f"<= {LONGEST_S:g} s", f"{longest:.1f} s ({slow} longer)", not slow),
    ]


def leftovers(run: TrainStep) -> list[str]:
    """Processes, shared memory and control groups of the run that are still there."""
    marks = [job_mark(job) for job in run.jobs()]
    groups = [path for root in Path("/sys/fs/cgroup").glob("*") for path in root.rglob("everstep-*") if path.is_dir()]
    return [*run.leftovers(), *(str(path) for path in groups if path.name.startswith(tuple(marks)))]


def main() -> None:
    """Soak, print each fault, the table by kind and what holds; exit code 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the run's folder, and say where it is")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everstep-soak-"))
    try:
        soaked, recoveries, lines = soak(folder, options.minutes, options.nodes, options.seed)
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\nseed {options.seed}, {options.minutes:g} minutes, {options.nodes} nodes\n")
    for recovery in recoveries:
        moment = time.strftime("%H:%M:%S", time.gmtime(recovery.fired.time))
        print(f"{moment}  {recovery.seconds:6.2f} s  {recovery.fired.kind:12} {recovery.fired.node:14} {recovery.how}")
    print(f"\n{table(recoveries)}\n")
    print("not among them: " + "; ".join(f"{kind}: {why}" for kind, why in LEFT_OUT.items()) + "\n")
    print("\n".join(f"did not fire: {what}" for what in soaked.missed))
    assert set(KINDS) | set(LEFT_OUT) == set(Kind), "each kind is injected, or it says why not"
    judge(lines)


if __name__ == "__main__":
    main()
