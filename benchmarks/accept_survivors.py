"""`make accept-survivors`: what is promised of workers that keep their processes: wanted, measured, holds or not.

    python -m benchmarks.accept_survivors --kills 200 --ranks 2 --ranks 4 --ways compiled --ways anew --compare

Exit code 1 if a line does not hold. Times are measured here, by `benchmarks/survivors.py`; the rest is proven by tests.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import many_rounds, survivors
from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from benchmarks.peers import survivor_peers
from benchmarks.recovery import format_kills, make_dataset, torchrun_kills
from everstep.runtime.agent.ports import free_port
from tests.harness import ROOT

SURVIVAL, AGENT, TRAINING = "tests/survival/", "tests/agent/test_survivors.py", "tests/training/"
KILLS, GROWTH = "kill -9 of a rank -> next iteration", "growth from 2 ranks to 3"
MANY = "500 rounds of two processes: descriptors, threads, memory flat"
PEERS = "beside it: torchrun with torch.save, torchft, NVRx"
PEER_KILLS = 5
PROVEN = {
    "a script that survives passes the fault tests of one that does not": (
        f"{SURVIVAL}test_training_survives.py::survive",
    ),
    "only the lost rank is made anew; equal weights": (f"{SURVIVAL}test_survivors.py::alone",),
    "50 rounds: descriptors, threads, shared memory, memory flat": (f"{SURVIVAL}test_survivors.py::fifty",),
    "a worker that does not leave within 2 s is killed and forked": (f"{AGENT}::killed",),
    "a collective, torch's store and a group that is being made are left at once": (
        f"{TRAINING}test_group_sockets.py",
    ),
    "a send or a receive that gloo has forgotten is left, too": (f"{TRAINING}test_gloo_waits.py",),
    "what is kept, and when it is built anew": (f"{TRAINING}test_kept_values.py",),
    "FSDP2 and a Hugging Face Trainer survive, with equal weights": (f"{SURVIVAL}test_survivors.py::other_frameworks",),
    "a killed worker is followed by a warm spare; equal weights": (f"{SURVIVAL}test_survivors.py::worker_is_followed",),
    "a lost node is followed by a warm spare node; equal weights": (
        f"{SURVIVAL}test_survivors.py::lost_node",
        "tests/launch/test_nodes.py::spare_node",
    ),
    "a node that comes while others train warms up before it joins": ("tests/agent/test_spare_keeper.py",),
    "growth interrupts no iteration of less than 4.5 s": (
        f"{TRAINING}test_next_round.py::ended",
        f"{AGENT}::after_its_iteration",
        "tests/job/test_job_rules.py::has_lost_no_rank",
    ),
    "an interrupted network ends no process; equal weights; a rank that failed is blamed whoever tells first": (
        f"{SURVIVAL}test_survivors.py::interrupted",
        f"{SURVIVAL}test_survivors.py::blamed",
        f"{TRAINING}test_next_round.py::told",
        "tests/job/test_disconnected.py",
    ),
    "a worker that runs before its fork server goes on leaves its round": (f"{AGENT}::goes_on",),
    "killed workers, lost nodes and random kills beside warm spares": (f"{SURVIVAL}test_training_survives.py::spares",),
    "a spare that is not warm, or dies, costs nothing": (f"{AGENT}::rehearses", f"{AGENT}::buried"),
}  # fmt: skip


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the figures first, with the machine to themselves."""
    if any(is_asked(promise, options.words) for promise in (KILLS, GROWTH, PEERS)):
        with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
            folder = Path(name)
            dataset = options.dataset or make_dataset(folder)
            if is_asked(KILLS, options.words):
                yield from kill_lines(folder, dataset, options)
            if is_asked(GROWTH, options.words):
                stop, _ = survivors.growth(folder, dataset)
                budget_text = f"<= {survivors.GROWTH_S:g} s"
                yield Line(f"{GROWTH}: what the others lose", budget_text, f"{stop:.2f} s", stop <= survivors.GROWTH_S)
            if is_asked(PEERS, options.words):
                yield from peer_lines(folder, dataset, min(PEER_KILLS, options.kills))
    if is_asked(MANY, options.words):
        yield many_rounds_line()
    yield from prove(PROVEN, options)


def many_rounds_line() -> Line:
    """What a process holds after many rounds."""
    places = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(random.Random()))}
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as folder:
        lines = Path(folder, "lines")
        command = [sys.executable, "-m", many_rounds.__name__, "500", str(lines)]
        ranks = [
            subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", **places, "RANK": str(rank)})
            for rank in range(2)
        ]
        codes = [rank.wait() for rank in ranks]
        if codes != [0, 0]:
            return Line(MANY, "flat", f"exit codes {codes}", False)
        kinds = many_rounds.left_behind(lines)
    return Line(MANY, "flat", "; ".join(kinds) or "flat", not kinds)


def peer_lines(folder: Path, dataset: str, kills: int) -> Iterator[Line]:
    """The same kill for others, in the same run."""
    killed, hung = torchrun_kills(folder, dataset, kills)
    yield Line(f"{PEERS}: torchrun", "told", f"{format_kills(killed)}; {hung} more kills hung", True)
    for row in survivor_peers.measure(folder, dataset, kills):
        yield Line(f"{PEERS}: {row.name}", "told", survivor_peers.describe(row), True)


def kill_lines(folder: Path, dataset: str, options: argparse.Namespace) -> Iterator[Line]:
    """Each way to live, for each number of ranks."""
    for series in survivors.measure(folder, dataset, options.kills, options.ranks, options.ways, options.compare):
        name = f"{series.ranks} ranks, {series.way.name}"
        what, result_text = f"{KILLS}, {name}, {options.kills} kills", survivors.describe(series)
        if not series.way.spares:
            yield Line(what, "told", result_text, True)
            continue
        budget_text = f"<= {survivors.FIXED_S:g} s + {survivors.ITERATIONS:g} iterations = {series.budget_s:.2f} s"
        yield Line(what, budget_text, f"{result_text}; {series.within} within", series.within == len(series.seconds))
        yield Line(f"{name}: iterations computed again", "0", str(series.lost), series.lost == 0)
        kept_text = f"{series.kept} of {series.expected}"
        yield Line(f"{name}: processes kept", "all", kept_text, series.kept == series.expected)
        first, most = series.graphs
        yield Line(f"{name}: graphs compiled per process", "as at first", f"{first:g} -> {most:g}", most <= first)
        if series.compared:
            equal = "equal" if series.equal else "they differ"
            yield Line(f"{name}: weights beside an undisturbed training", "equal bits", equal, series.equal)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    survivors.add_flags(parser)
    judge(lines(parse_options(parser, [KILLS, GROWTH, PEERS, MANY, *PROVEN])))


if __name__ == "__main__":
    main()
