"""The cable of one of 2 nodes is pulled until the next iteration is finished; and what a frozen node or a blip costs.

    python -m benchmarks.lost_machine --cuts 10
    python -m benchmarks.lost_machine --cuts 0 --pauses 60    # an hour of pauses beside load: is anybody suspected?

Each node has a network namespace and an agent of `everstep launch`; the master is beside the node that stays. To the
others, a node whose packets vanish looks like one without power. As root, or as a user who may make user namespaces.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from everstep.runtime.agent.ports import free_port
from tests.harness import busy
from tests.launch import sampled
from tests.launch.launchers import Launcher, until
from tests.launch.networks import Network
from tests.launch.nodes import Nodes

BUDGET_S = 5.0
FROZEN_S, BLIP_S = 10.0, 3.0
MOST_ROUNDS = 2
"""That a frozen node or a blip may cost."""
PAUSING = sampled.BY_GLOO.replace(
    "    torch",
    """    if iteration % 40 == 0:
        threading.Event().wait(4.0)  # An evaluation on all ranks.
    if iteration % 50 == 10 * job.rank:
        threading.Event().wait(3.0)  # A save by one, the others wait.
    if iteration % 60 == 5:
        import gc
        rings = [[] for _ in range(1_000_000)]
        for ring in rings:
            ring.append(ring)
        del ring, rings
        gc.collect()
    torch""",
)
"""How the ranks agree in each iteration, with the pauses of a training."""
PAUSE_S = 0.3
"""Longer than an iteration, so that cuts come at random moments."""


@dataclass
class Training:
    """Two nodes that train until they are told to end."""

    launcher: Launcher
    network: Network
    nodes: Nodes

    @property
    def folder(self) -> Path:
        """Of the script and what it writes down."""
        return self.launcher.folder

    def newest(self) -> int:
        """The newest iteration."""
        return max(sampled.applied_samples(self.folder), default=0)

    def wait_for(self, world: int, after: int = 0) -> int:
        """Wait for a round later than `after` with so many workers; its number."""
        until(lambda: sampled.later_round(self.folder, world, after), self.nodes.stderr_text)
        return sampled.later_round(self.folder, world, after)

    def count(self, kind: str) -> int:
        """Records of that kind in the job's journal."""
        return self.nodes.kinds().count(kind)


@contextmanager
def start(folder: Path, agree: str = sampled.BY_GLOO) -> Iterator[Training]:
    """A training of two nodes."""
    network = Network()
    network.make()
    with closing(network), closing(Launcher(folder)) as launcher:
        dataset = sampled.make_dataset(folder)
        (folder / "train.py").write_text(sampled.script(agree))
        nodes = Nodes(launcher, free_port(random.Random()), network.address(0), (dataset,))
        for number, name in enumerate("ab"):
            more = {"EVERSTEP_JOB_TOKEN": "of both", "GLOO_SOCKET_IFNAME": f"ever{number}", "OMP_NUM_THREADS": "1"}
            usual = "--rdzv-conf=last_call_timeout=2"
            nodes.start(name, usual, nodes="1:2", within=network.enter(number), **more)
        yield Training(launcher, network, nodes)
        nodes.finish("a", "b")


def cuts(training: Training, count: int, seed: int = 0) -> list[float]:
    """Seconds from each cut until a later iteration was finished."""
    choose, seconds, number = random.Random(seed), [], training.wait_for(2)
    for cut in range(count):
        threading.Event().wait(choose.random() * PAUSE_S)
        training.network.wire("down")
        moment, before = time.monotonic(), training.newest()
        until(lambda before=before: training.newest() > before + 1, training.nodes.stderr_text)
        seconds.append(time.monotonic() - moment)
        print(f"cut {cut + 1}/{count} at iteration {before}: {seconds[-1]:.2f} s", file=sys.stderr)
        alone = training.wait_for(1, number)
        training.network.wire("up")
        number = training.wait_for(2, alone)
    return seconds


def freeze(training: Training, seconds: float) -> None:
    """Stop all processes of the second node for so long."""
    root = psutil.Process(training.nodes.launcher.named["b"].pid)
    stopped = [root, *root.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    threading.Event().wait(seconds)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def blip(training: Training, seconds: float) -> None:
    """Cut the wire for so long."""
    training.network.wire("down")
    threading.Event().wait(seconds)
    training.network.wire("up")


def suspicions(minutes: float) -> tuple[int, int]:
    """(Suspicions, iterations) of a training with pauses on a busy machine."""
    with (
        tempfile.TemporaryDirectory(prefix="everstep-bench-") as name,
        busy(soaking=True),
        start(Path(name), PAUSING) as training,
    ):
        training.wait_for(2)
        threading.Event().wait(60 * minutes)
        return training.count("NodeSuspected"), training.newest()


def faults(count: int) -> Iterator[tuple[str, str, str, bool]]:
    """(What, measured, budget, whether it holds) of cuts, a frozen node, a blip."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name, start(Path(name)) as training:
        seconds = cuts(training, count)
        measured_text = f"median {statistics.median(seconds):.2f} s, maximum {max(seconds):.2f} s"
        budget = f"<= {BUDGET_S:g} s"
        yield (
            f"a node's cable is pulled -> next iteration, {count} cuts",
            measured_text,
            budget,
            max(seconds) <= BUDGET_S,
        )
        for what, disturb, lasts in (("frozen", freeze, FROZEN_S), ("cut off", blip, BLIP_S)):
            rounds, lost_nodes = training.count("RoundFormed"), training.count("NodeLost")
            disturb(training, lasts)
            before = training.newest()
            until(lambda before=before: training.newest() > before + 50, training.nodes.stderr_text)
            training.wait_for(2)
            rounds, lost_nodes = training.count("RoundFormed") - rounds, training.count("NodeLost") - lost_nodes
            measured_text = f"{rounds} rounds, {lost_nodes} nodes given up"
            budget = f"<= {MOST_ROUNDS} rounds, 0 given up"
            yield (f"a node is {what} for {lasts:g} s", measured_text, budget, rounds <= MOST_ROUNDS and not lost_nodes)


def main() -> None:
    """Measure and print the table; exit code 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--pauses", type=float, default=0.0, metavar="MINUTES")
    options = parser.parse_args()
    rows = list(faults(options.cuts)) if options.cuts else []
    if options.pauses:
        wrong, iterations = suspicions(options.pauses)
        what = f"suspicions in {options.pauses:g} minutes of pauses on a busy machine"
        rows.append((what, f"{wrong} in {iterations} iterations", "0", not wrong))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n\n| what | measured | budget |\n|---|---|---|")
    for what, measured_text, budget, _ in rows:
        print(f"| {what} | {measured_text} | {budget} |")
    sys.exit(not all(holds for *_, holds in rows))


if __name__ == "__main__":
    main()
