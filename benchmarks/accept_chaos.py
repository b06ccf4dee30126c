"""`make accept-chaos`: faults injected for real and in virtual time: wanted, measured, holds or not.

Words on the command line select lines. Left out: other faults on a real cluster than those of the drill (`make
accept-cluster`), and ChaosBlade's operator, whose resources are compared with its schema here.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import chaos_drill, master
from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from everstep.steps.chaos.drill import CASES
from tests import seaweedfs
from tests.cluster import lifecycle
from tests.golang import NoGoError
from tests.harness import ROOT

DRILL, IN_PODS = "drill: {}", "drill in pods of two nodes, by Argo: {}"
LIKE_UNDISTURBED = "as the undisturbed training, within its limits"
WEEK_S, WEEK_NODES = 300.0, 10_000
GOODPUT = 0.99
LOAD_S = 60.0
SOAK = "soak: {} minutes, 4 nodes, a fault every 15 s"
SOAK_MINUTES = 30
SECOND = "a second S3 server: SeaweedFS"
FLIPS = "certified states: 100 planted bit flips found, the node named, the cost"
REPLAY = "certified states: what it costs that another rank computes gradients again"
SLOW = "a slow store: 50 ms away, 5 % errors, 5 requests a second"
AGENTS, LOST = 10_000, 500
PLANE = f"control plane: {AGENTS} agents, {LOST} lost at once, the master lost"
MANY = "control plane: 100,000 tasks in the executor, 1,000 runs listed"
NEAR_REAL = "simulator: against a real local run with 10 faults in 10 minutes"
PROVEN: Mapping[str, tuple[str, ...]] = {
    "certified states: restorable => certified, in every order of events": (
        "tests/job/test_certified.py",
        "tests/checkpoint/test_keeper_core.py::no_order_of_events",
    ),
    "certified states: a bit flipped in a process that trains is found, its node replaced elsewhere": (
        "tests/survival/test_certified.py",
    ),
    "injectors: each says when it fired; what cannot be done here is refused": ("tests/chaos/test_injector.py",),
    "injectors: a process's clock, a slow disk": (
        "tests/chaos/test_injector.py::clock",
        "tests/chaos/test_injector.py::slow",
    ),
    "injectors: exec into pods, ChaosBlade's resources by the schema of its definition": (
        "tests/chaos/test_on_cluster.py",
    ),
    "injectors: a pod's network, or its way to the store, lost from inside; undone": ("tests/chaos/test_cut_off.py",),
    "injectors: refused on a cluster without --yes; undone when they are told to end": (
        "tests/chaos/test_injector.py::without_yes",
        "tests/chaos/test_injector.py::told_to_end",
        "tests/chaos/test_on_cluster.py::as_before",
        "tests/chaos/test_on_cluster.py::keeps_the_taints",
    ),
    "drill: it takes the parameters, job spec and script of your own step, which waits for it": (
        "tests/chaos/test_drill.py::of_your_step",
        "tests/docs/test_examples.py::own_step_waits",
    ),
    "verdict: whatever differs from the reference, or shows nothing, does not hold": ("tests/chaos/test_drill.py",),
    "certified states: a loss that is a spike or no number steps back; a batch that is so again is skipped, told": (
        "tests/job/test_certified.py::whatever_happens",
        "tests/agent/test_evidence.py",
        "tests/survival/test_certified.py::is_skipped",
    ),
    "certified states: the last iteration's gradients, computed again on another rank, show who was wrong": (
        "tests/training/test_replay.py",
        "tests/survival/test_certified.py::another_rank",
    ),
    "simulator: the same seed, the same outcome": ("tests/simulation/test_simulation.py::same_seed",),
    "simulator: what each policy costs follows from its parts": ("tests/simulation/test_simulation.py",),
}


def drill_here(options: argparse.Namespace) -> Iterator[Line]:
    """Run the drill with the asked experiments, on this machine."""
    names = [name for name in CASES if is_asked(DRILL.format(name), options.words)]
    yield from _rows(DRILL, names, chaos_drill.drill_here(names, 60))


def drill_in_pods(options: argparse.Namespace) -> Iterator[Line]:
    """The same on the cluster of two nodes."""
    names = [name for name in CASES if is_asked(IN_PODS.format(name), options.words)]
    why, holds = lifecycle.missing(), None
    if not why:
        try:
            yield from _rows(IN_PODS, names, chaos_drill.drill_in_pods(names, chaos_drill.ITERATIONS))
            return
        except NoGoError as error:
            why = str(error)
        except lifecycle.ClusterError as error:
            why, holds = str(error), False
    yield from (Line(IN_PODS.format(name), LIKE_UNDISTURBED, why, holds) for name in names)


def _rows(promise: str, names: Sequence[str], page: str) -> Iterator[Line]:
    rows = chaos_drill.rows_of(page)
    for name in names:
        row = rows.get(name)
        measured_text, holds = (row.text, row.holds) if row else ("no verdict", False)
        yield Line(promise.format(name), LIKE_UNDISTURBED, measured_text, holds)


def week(_: argparse.Namespace) -> Iterator[Line]:
    """A week of 10,000 nodes with losses of whole switches."""
    began, before = time.monotonic(), _cpu_of_commands()
    (row,) = _simulate("--nodes", str(WEEK_NODES), "--burst-hours", "24", "--policies", "default:")
    clock_s, seconds = time.monotonic() - began, _cpu_of_commands() - before
    facts_text = f"{row['failures']} failures, {row['events']} events, goodput {row['goodput']:.2%}"
    measured_text = f"{seconds:.0f} s of CPU time, {clock_s:.0f} s on the clock, {facts_text}"
    budget_text = f"<= {WEEK_S:.0f} s of one core"
    yield Line("simulator: a week of 10,000 nodes with bursts", budget_text, measured_text, seconds <= WEEK_S)


def _cpu_of_commands() -> float:
    """CPU seconds of the commands that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def published_simulation(_: argparse.Namespace) -> Iterator[Line]:
    """2,048 nodes at the failure rate published for Llama 3."""
    (row,) = _simulate("--policies", "default:")
    rows = _simulate(
        "--policies",
        "dlrover: costs=16k-gpus-dlrover, join-window=60, shrink-after=60; "
        "torchrun: costs=16k-gpus-torchrun, stage=360, persist=1800, shrink-after=30",
    )
    beside = ", ".join(f"{row['policy']}'s costs {row['goodput']:.1%}" for row in rows)
    share = float(str(row["goodput"]))
    yield Line(
        "simulator: goodput at one failure in 3.1 h", f">= {GOODPUT:.0%}", f"{share:.2%} ({beside})", share >= GOODPUT
    )


def _simulate(*words: str) -> list[dict[str, float | int | str]]:
    command = [sys.executable, "-m", "everstep", "simulate", "-o", "json", *words]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def _judge_lines(*words: str) -> tuple[list[str], list[str]]:
    """(All lines that a benchmark judged, those that do not hold)."""
    completed = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    print(completed.stdout, file=sys.stderr)
    each = [line for line in completed.stderr.splitlines() if line.startswith(("yes ", "NO  "))]
    return [line[4:] for line in each], [line[4:] for line in each if line.startswith("NO")]


def soak(_: argparse.Namespace) -> Iterator[Line]:
    """One training under faults of all kinds."""
    each, bad = _judge_lines("benchmarks.soak", "--minutes", str(SOAK_MINUTES))
    measured_text = "; ".join(bad) or f"{len(each)} lines hold"
    budget_text = "the weights of an undisturbed run, nothing left, flat, median <= 1 s, none over 10 s"
    yield Line(SOAK.format(SOAK_MINUTES), budget_text, measured_text, bool(each) and not bad)


def many(_: argparse.Namespace) -> Iterator[Line]:
    """Tasks of one workflow, and runs of one folder."""
    each, bad = _judge_lines("benchmarks.many_tasks")
    yield Line(MANY, "as long a task as of 1,000; <= 1 s", "; ".join(bad or each), bool(each) and not bad)


def near_real(_: argparse.Namespace) -> Iterator[Line]:
    """The simulator beside a real run."""
    each, bad = _judge_lines("benchmarks.simulated_run")
    yield Line(NEAR_REAL, "within 15 %", "; ".join(each), bool(each) and not bad)


def plane(_: argparse.Namespace) -> Iterator[Line]:
    """One master and its crowd over real HTTP."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[master.Row] = []
    with master.scene(AGENTS, clients=2) as stage:
        master.rounds(stage, rows)
        master.losses(stage, LOST, rows)
        master.load(stage, LOAD_S, rows)
    for what, measured_text, budget, holds in rows:
        yield Line(f"control plane: {what}", budget or "told", measured_text, holds is not False)


def flips(_: argparse.Namespace) -> Iterator[Line]:
    """Bits in live replicas, copies and on the way."""
    command = [sys.executable, "-m", "benchmarks.certified", "--flips", "100"]
    completed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(completed.stdout, file=sys.stderr)
    measured_text = "; ".join(
        line for line in completed.stdout.splitlines() if " of 100 " in line or "comparison" in line
    )
    yield Line(FLIPS, "100 of 100, <= 1 % of the time", measured_text or "no answer", completed.returncode == 0)


def replay(_: argparse.Namespace) -> Iterator[Line]:
    """In a real training, with the comparison of states."""
    each, bad = _judge_lines("benchmarks.replay")
    yield Line(REPLAY, "<= 1 % of the time", "; ".join(each) or "no answer", bool(each) and not bad)


def slow_store(_: argparse.Namespace) -> Iterator[Line]:
    """What writes and reads take behind a wire that misbehaves."""
    command = [sys.executable, "-m", "benchmarks.slow_store"]
    completed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(completed.stdout, file=sys.stderr)
    rows = completed.stdout.splitlines()[2:]
    yield Line(SLOW, "told", f"{len(rows)} rows above", completed.returncode == 0)


def second_s3(_: argparse.Namespace) -> Iterator[Line]:
    """The store's tests of S3, on a server other than MinIO."""
    words = ["-m", "pytest", "-q", "tests/store", "-k", "not directory"]
    environment = {**os.environ, seaweedfs.VARIABLE: "seaweedfs"}
    completed = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    last = (completed.stdout.strip().splitlines() or ["no answer"])[-1]
    yield Line(SECOND, "the tests that MinIO passes", last, completed.returncode == 0)


MEASURED: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    **{DRILL.format(name): drill_here for name in CASES},
    **{IN_PODS.format(name): drill_in_pods for name in CASES},
    "simulator: a week of 10,000 nodes with bursts": week,
    "simulator: goodput at one failure in 3.1 h": published_simulation,
    NEAR_REAL: near_real,
    PLANE: plane,
    MANY: many,
    FLIPS: flips,
    REPLAY: replay,
    SECOND: second_s3,
    SLOW: slow_store,
    SOAK.format(SOAK_MINUTES): soak,
}


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: measurements first, with the machine to themselves."""
    for measure in dict.fromkeys(how for promise, how in MEASURED.items() if is_asked(promise, options.words)):
        yield from measure(options)
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    judge(lines(parse_options(parser, [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()
