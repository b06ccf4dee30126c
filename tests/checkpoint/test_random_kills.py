"""SIGKILL at each named point, then at any moment of save and persist: never an empty load, never a mixed one, each the
state that was saved.

EVERSTEP_ROUNDS=200 is the long series.
"""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.runtime.checkpoint.stored.verify import find_problems, list_checkpoints
from everstep.runtime.job.brain import WriteManifest
from everstep.runtime.job.restore import choose_restore
from everstep.runtime.master.manifest import write_manifest
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import DirectoryStore
from tests.fake_agent import Node
from tests.forks import Forks
from tests.harness import wait_until

SCRIPT = Path(__file__).parent / "killed_script.py"
POINTS = ["checkpoint.before_copy", "checkpoint.mid_copy", "checkpoint.after_copy", "checkpoint.after_commit"]
ROUNDS = int(os.environ.get("EVERSTEP_ROUNDS", "2"))


class Ranks:
    """The script, and what a master does for its nodes."""

    def __init__(self, kind: str, nodes: list[Node], folder: Path, forks: Forks) -> None:
        self.kind, self.nodes, self.folder, self.forks, self.round = kind, nodes, folder, forks, 0
        self._lock = threading.Lock()
        self.persisted: list[Holding] = []
        for node in nodes:
            node.commits, node.told = False, self._told

    def _told(self, holding: Holding) -> None:
        with self._lock:
            self.persisted.append(holding)
            place = holding.round, holding.iteration
            same = {
                shard_holding.shard: shard_holding
                for shard_holding in self.persisted
                if (shard_holding.round, shard_holding.iteration) == place
            }
            if len(same) == holding.shards:
                every = tuple(same[shard] for shard in sorted(same))
                key = write_manifest(self.nodes[0].store, "job", WriteManifest(*place, len(every), every))
                for node in self.nodes:
                    for shard_holding in every:
                        node.keeper.note_commit(shard_holding, key)

    def begin(self) -> int:
        """A round, from the newest state that is held whole; its iteration."""
        holdings_held = [holding for node in self.nodes for holding in node.keeper.holdings(node.address)]
        restore = choose_restore(holdings_held + self.persisted)
        self.round += 1
        sharded = self.kind == "fsdp"
        for rank, node in enumerate(self.nodes):
            place = {"first_rank": rank, "world_size": len(self.nodes)}
            peers = (self.nodes[(rank + 1) % len(self.nodes)].address,) if sharded else ()
            node.begin(self.round, restore, persists=not rank, peers=peers, keeps=len(peers), **place)
        return restore.iteration if restore else 0

    def live(self, chance: random.Random, fault: str) -> None:
        """Ranks start, and one of them is killed: there, or at some moment after it has begun to save."""
        log = str(self.folder / f"log-{self.round}")
        instructions = {"kind": self.kind, "agents": [node.path for node in self.nodes], "log": log}
        variables = {"EVERSTEP_FAULT": fault, "EVERSTEP_FAULT_DIR": str(self.folder / "faults")}
        variables |= {"EVERSTEP_ROUND": str(self.round)}
        running = self.forks.start([str(SCRIPT), json.dumps(instructions)], variables, self.folder / "out")
        if not fault:
            wait_until(lambda: all("saves" in self.log(rank) for rank in range(len(self.nodes))), "a save of each rank")
            threading.Event().wait(chance.random() * 0.2)
            os.kill(chance.choice(json.loads(Path(f"{log}.pids").read_text())), signal.SIGKILL)
        assert self.forks.wait(running) == 0, (self.folder / "out").read_text()
        for node in self.nodes:
            node.keeper.worker_died(0)

    def log(self, rank: int) -> str:
        path = self.folder / f"log-{self.round}-{rank}"
        return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "beside"])
def test_wherever_a_rank_is_killed_the_next_loads_what_was_saved(
    kind: str, make_node: Callable[..., Node], tmp_path: Path, store: DirectoryStore, forks: Forks
) -> None:
    nodes = [make_node(f"worker-{number}-0", interval=3) for number in range(2)]
    ranks, chance = Ranks(kind, nodes, tmp_path, forks), random.Random(0)
    replicated: dict[int, str] = {}  # What one rank has saved all of them have, or would have.
    saved_by_rank: list[dict[int, str]] = [{} if kind == "fsdp" else replicated for _ in nodes]
    (tmp_path / "faults").mkdir()
    for number in range(len(POINTS) + ROUNDS):
        begun = ranks.begin()
        assert bool(begun) == bool(number), "it began from nothing though something was held"
        ranks.live(chance, f"{POINTS[number]},iteration={begun + 3},rank=1=kill" if number < len(POINTS) else "")
        for rank, saved_values in enumerate(saved_by_rank):
            (_, loaded, digest), *saves = (
                line.split() for line in ranks.log(rank).splitlines() if line.count(" ") == 2
            )
            assert int(loaded) == begun
            assert begun == 0 or saved_values[begun] == digest
            saved_values.update((int(iteration), value) for _, iteration, value in saves)
    assert sorted(os.listdir(tmp_path / "faults")) == sorted(POINTS)
    for checkpoint in list_checkpoints(store, "jobs/job/"):
        if checkpoint.commit is not None:
            assert list(find_problems(store, checkpoint.folder, checkpoint.commit)) == []
    for node in nodes:
        node.keeper.close()
        assert os.listdir(node.shm) == []
