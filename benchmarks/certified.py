"""Bits flipped in three replicas of a training, in their copies and on the way: all found; what that costs.

    python -m benchmarks.certified --flips 100

Real keepers, shared memory, HTTP and files, and the brain that decides for real jobs, all in this process
(`tests/survival/test_certified.py` flips bits in the processes of a whole training). A flip in a gradient comes after
the ranks have reduced it: what all ranks get alike no comparison can show.
"""

import argparse
import http.server
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from everstep.runtime.checkpoint.shard.copy_to_slot import Stager
from everstep.runtime.checkpoint.shard.digests import Digests
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.segment import SegmentFile
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.job.events import EvidenceGiven
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.records import StateCertified, StateRejected
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.holdings import Holding, Restore
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.worker_link import Staged
from everstep.runtime.store import DirectoryStore
from tests.fake_agent import Node, _Peer
from tests.job.world import World, platform

REPLICAS = 3
WAIT_S = 60.0
MOST_SHARE = 0.01
INTERVAL, ITERATION_S = 50, 0.1
"""The cadence at which the cost is told: as often as a state goes to the store, of a fast training."""


@dataclass
class Replica:
    """A node that trains: its live state, and its keeper."""

    node: Node
    state: dict[str, torch.Tensor] = field(default_factory=dict)

    def train(self, gradient: torch.Tensor) -> None:
        """One step of gradient descent with momentum."""
        self.state["optimizer"].mul_(0.9).add_(gradient)
        self.state["weights"].sub_(self.state["optimizer"], alpha=0.01)

    def stage(self, iteration: int, persist: bool = False) -> None:
        """As a Checkpointer does it."""
        tree = flatten(self.state)
        text = json_bytes({"iteration": iteration, "state": tree.json})
        layout = plan_layout(tree.tensors, state_capacity(text))
        segment = SegmentFile.open(Path(self.node.keeper.announce(0, layout.size).path))
        slot = self.node.keeper.acquire(0, iteration).slot
        Stager(layout, tree).stage(slot, segment.slot(slot), tree, text, iteration)
        self.node.keeper.commit_stage(0, Staged(slot, iteration, layout.size, persist))


@contextmanager
def replicas(folder: Path) -> Iterator[tuple[list[Replica], World]]:
    """Three nodes that train the same, and the brain of their job."""
    store = DirectoryStore(folder / "store")
    world = World(platform({"worker": RoleSpec(REPLICAS, 1)}, certify_interval=1))
    world.join_all()
    start = {"weights": torch.randn(20_000), "optimizer": torch.zeros(20_000)}
    each = [
        Replica(Node(folder / name, store, name), {key: value.clone() for key, value in start.items()})
        for name in world.names(NodePhase.RUNNING)
    ]
    for rank, replica in enumerate(each):
        replica.node.begin(world.number, persists=not rank, certifies=1)
    try:
        yield each, world
    finally:
        for replica in each:
            replica.node.close()


def compare(each: list[Replica], world: World) -> None:
    """What each keeper tells of its newest state reaches the brain."""
    for replica in each:
        world.send(EvidenceGiven(replica.node.evidence.get(timeout=WAIT_S)))


def flip(data: memoryview, chance: random.Random) -> None:
    """One bit of it."""
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)


def is_found_live(what: str, folder: Path, chance: random.Random) -> bool:
    """A flip in the memory of a rank that trains: no state with it is certified, and the rank is named."""
    with replicas(folder) as (each, world):
        victim, struck = chance.randrange(REPLICAS), chance.randrange(2, 5)
        for iteration in range(1, struck + 1):
            gradient = torch.randn(20_000)
            for rank, replica in enumerate(each):
                mine, hit = gradient.clone(), (rank, iteration) == (victim, struck)
                if hit and what == "gradient":
                    flip(mine.view(torch.uint8).numpy().data, chance)
                replica.train(mine)
                if hit and what != "gradient":
                    flip(replica.state[what].view(torch.uint8).numpy().data, chance)
                replica.stage(iteration)
            compare(each, world)
        sound = [record.iteration for record in world.records if isinstance(record, StateCertified)]
        accused = [record.nodes for record in world.records if isinstance(record, StateRejected)]
        return sound == list(range(1, struck)) and accused == [(each[victim].node.name,)]


def is_found_in_copy(what: str, folder: Path, chance: random.Random) -> bool:
    """A flip in a copy of a certified state, or on its way: no node begins from it."""
    with replicas(folder) as (each, world):
        for replica in each:
            replica.stage(1, persist=what == "store")
        compare(each, world)
        first = each[0].node
        holding = next(iter(first.keeper.holdings(first.address)))
        if what == "store":
            first.keeper.flush(0, 1)
            holding = first.persisted[-1]
            path = Path(first.store.uri) / holding.key
            data = bytearray(path.read_bytes())
            flip(memoryview(data), chance)
            path.write_bytes(data)
        elif what == "peer copy":
            with first.keeper.open_shard(1, 1, 0) as shard:
                flip(shard, chance)
        with _bent(first, chance) if what == "wire" else _straight(holding) as source:
            source = source if what != "wire" else Holding(**{**_fields(holding), "address": source.address})
            fresh = Node(folder / "fresh", first.store, "worker-9-0")
            try:
                fresh.begin(2, Restore(1, 1, (source,), "newest whole"))
                return bool(fresh.refused.get(timeout=WAIT_S))
            finally:
                fresh.close()


def _fields(holding: Holding) -> dict[str, Any]:
    return {name: getattr(holding, name) for name in holding.__struct_fields__}


@contextmanager
def _straight(holding: Holding) -> Iterator[Holding]:
    yield holding


@contextmanager
def _bent(node: Node, chance: random.Random) -> Iterator[Holding]:
    """The node's memory, behind a wire that changes one bit."""

    class Wire:
        """Stands in for its keeper."""

        @contextmanager
        def open_shard(self, *place: int) -> Iterator[memoryview]:
            with node.keeper.open_shard(*place) as shard:
                data = memoryview(bytearray(shard))
                flip(data, chance)
                yield data

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Peer", (_Peer,), {"keeper": Wire()}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Holding(1, 1, address=f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()


KINDS: dict[str, Callable[[str, Path, random.Random], bool]] = {
    "weights": is_found_live, "optimizer": is_found_live, "gradient": is_found_live,
    "peer copy": is_found_in_copy, "store": is_found_in_copy, "wire": is_found_in_copy,
}  # fmt: skip


def plant_flips(count: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """(Flips of each kind, those that were found)."""
    tried, detected = Counter[str](), Counter[str]()
    for number in range(count):
        what, chance = list(KINDS)[number % len(KINDS)], random.Random(f"{seed} {number}")
        torch.manual_seed(number)
        with tempfile.TemporaryDirectory(prefix="everstep-flip-") as folder:
            tried[what] += 1
            detected[what] += KINDS[what](what, Path(folder), chance)
    return tried, detected


def seconds_of_a_comparison() -> float:
    """CPU seconds that comparing one state takes beyond what is done without: the keeper computes its digests anyway.

    A worker's threads wait for none of it.
    """
    with tempfile.TemporaryDirectory(prefix="everstep-flip-") as folder, replicas(Path(folder)) as (each, world):
        spent = []
        for iteration in range(1, 40):
            for replica in each:
                replica.stage(iteration)
            reports: list[Evidence] = [replica.node.evidence.get(timeout=WAIT_S) for replica in each]
            began = time.thread_time()
            for replica, evidence in zip(each, reports, strict=True):
                with replica.node.keeper.open_shard(evidence.round, iteration, 0) as shard:
                    Digests(shard).comparison()
                world.send(EvidenceGiven(evidence))
                replica.node.keeper.note_certified(evidence)
            spent.append(time.thread_time() - began)
        return statistics.median(spent)


def main() -> None:
    """Plant, compare, print; exit code 1 if one was not found or it costs too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tried, detected = plant_flips(options.flips, options.seed)
    print("| flipped bit | planted | found, its node named or its source refused |\n|---|---|---|")
    for what in tried:
        print(f"| {what} | {tried[what]} | {detected[what]} |")
    seconds = seconds_of_a_comparison()
    share = seconds / (INTERVAL * ITERATION_S)
    print(f"\n{sum(detected.values())} of {options.flips} found")
    print(f"a comparison of {REPLICAS} replicas takes {1000 * seconds:.2f} ms of CPU, nodes and master together: "
          f"{share:.3%} of {INTERVAL} iterations of {ITERATION_S:g} s")  # fmt: skip
    sys.exit(0 if detected == tried and share <= MOST_SHARE else 1)


if __name__ == "__main__":
    main()
