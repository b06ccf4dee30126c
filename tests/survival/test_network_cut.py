"""Packets that vanish between two nodes, without any rights on this machine: what one node says to the other goes by a
proxy that stops forwarding. The job goes on without the one, and with it again when the wire is mended; the workers of
the node that was cut off wait for the other for ever, until their agent hears that their round is over.

(tests/launch/test_network_loss.py has the same with a real network, where one can be made.)
"""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from everstep.runtime.agent.ports import free_port
from tests.harness import ROUNDS
from tests.launch import sampled
from tests.launch.launchers import Launcher, until
from tests.launch.nodes import Nodes
from tests.wire import FAR, Wire

OVER_WIRE = f"""
link = None
if job.world_size == 2:
    near, far = int(sys.argv[2]), int(sys.argv[3])
    if job.rank == 0:
        link = torch.distributed.TCPStore("127.0.0.1", near, is_master=True, wait_for_workers=False)
    torch.distributed.barrier()
    link = link or torch.distributed.TCPStore("{FAR}", far, wait_for_workers=False)

def agree(iteration, stop):
    if link:
        link.set(f"{{iteration}} of {{job.rank}}", str(stop.item()))
        stop += float(link.get(f"{{iteration}} of {{1 - job.rank}}"))
        if stop:
            torch.distributed.barrier()  # The link's server goes with rank 0.
"""
"""Each iteration needs an exchange between the ranks, by a port of the near node that is reached over the wire."""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """In a folder of its own; whatever a failed test leaves is ended."""
    with closing(Launcher(tmp_path)) as new_launcher:
        yield new_launcher


@pytest.fixture
def wire() -> Iterator[Wire]:
    """Whole."""
    with closing(Wire()) as new_wire:
        yield new_wire


def worker(folder: Path, number: int, launcher: int) -> psutil.Process:
    """The process that trains in that round for that launcher."""
    ranks = [psutil.Process(int(path.stem.split("-")[2])) for path in (folder / "samples").glob(f"{number}-*.jsonl")]
    (worker,) = (process for process in ranks if launcher in [parent.pid for parent in process.parents()])
    return worker


def test_a_node_whose_packets_vanish_is_done_without_and_comes_back(launcher: Launcher, wire: Wire) -> None:
    folder, chance = launcher.folder, random.Random()
    (folder / "train.py").write_text(sampled.script(OVER_WIRE))
    dataset = sampled.make_dataset(folder)
    port, exchange, over_wire = (free_port(chance) for _ in range(3))
    wire.lead(port)
    wire.lead(over_wire, exchange)
    arguments = (dataset, str(exchange), str(over_wire))
    near, far = Nodes(launcher, port, arguments=arguments), Nodes(launcher, port, FAR, arguments)

    def trains(world: int, after: int) -> int:
        """Wait for a round later than `after`; its number."""
        until(lambda: sampled.later_round(folder, world, after), near.stderr_text)
        return sampled.later_round(folder, world, after)

    near.start("a")
    until(lambda: wire.answers(port, 20), near.stderr_text)
    cut_node = far.start("b")
    both = trains(2, 0)
    begun = sampled.worlds(folder)  # On a busy machine the near one did not wait for the far one.
    for _ in range(ROUNDS):
        cut_off = worker(folder, both, cut_node)
        wire.cut()
        assert not wire.answers(port, 1), "the fault fired"
        alone = trains(1, both)
        assert wire.held, "what was said meanwhile did not pass"
        assert cut_off.is_running(), "nobody could tell it"

        wire.mend()
        both = trains(2, alone)
        assert not cut_off.is_running(), "its agent heard that its round is over"
    assert [outcome.code for outcome in near.finish("a", "b")] == [0, 0], near.stderr_text()
    near.wait_until_gone()
    sampled.assert_applied_once(folder, dataset, [*begun, *[1, 2] * ROUNDS])
