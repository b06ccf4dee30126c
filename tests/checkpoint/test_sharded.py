"""Real ranks with FSDP2 and tensor parallelism on gloo: killed, started again, and cut otherwise, bit for bit."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.runtime.checkpoint.stored.manifest import read_commit
from everstep.runtime.checkpoint.stored.read_committed import read_committed
from everstep.runtime.checkpoint.stored.verify import list_checkpoints
from everstep.runtime.job.brain import WriteManifest
from everstep.runtime.job.restore import choose_restore
from everstep.runtime.master.manifest import write_manifest
from everstep.runtime.protocol.holdings import Holding, Restore
from everstep.runtime.store import DirectoryStore
from tests.fake_agent import Node
from tests.forks import Forks

SCRIPT = Path(__file__).parent / "sharded_script.py"


class Job:
    """Nodes with one rank each (or more), and what a master does for their checkpoints."""

    def __init__(self, make_node: Callable[..., Node], folder: Path, forks: Forks) -> None:
        self._make, self._folder, self._forks = make_node, folder, forks
        self.nodes: list[Node] = []
        self.round = 0
        self.made = 0
        self.manifests: list[str] = []
        (folder / "faults").mkdir()

    def node(self, workers: int = 1, **settings: Any) -> Node:
        self.made += 1
        node = self._make(f"worker-{self.made}-0", workers=workers, **settings)
        node.commits, node.told = False, self._persisted
        return node

    def _persisted(self, _: Holding) -> None:
        """Commit what is whole, and tell everybody."""
        stored = [shard_holding for node in self.nodes for shard_holding in node.persisted]
        for place in {shard_holding[:2] for shard_holding in map(_fields, stored)}:
            shards = {
                shard_holding.shard: shard_holding for shard_holding in stored if _fields(shard_holding)[:2] == place
            }
            if len(shards) == next(iter(shards.values())).shards:
                every = tuple(shards[n] for n in sorted(shards))
                key = write_manifest(self.nodes[0].store, "job", WriteManifest(*place, len(every), every))
                self.manifests.append(key)
                for node in self.nodes:
                    for shard_holding in every:
                        node.keeper.note_commit(shard_holding, key)

    def holdings(self) -> list[Holding]:
        stored = [holding for node in self.nodes for holding in node.persisted]
        return [holding for node in self.nodes for holding in node.keeper.holdings(node.address)] + stored

    def begin(self, nodes: Sequence[Node], restore: Restore | None) -> None:
        self.round += 1
        self.nodes = list(nodes)
        first, world = 0, sum(node.workers for node in nodes)
        for number, node in enumerate(nodes):
            node.keeper.holdings(node.address)
            peers = (nodes[(number + 1) % len(nodes)].address,) if len(nodes) > 1 else ()
            place = {"first_rank": first, "world_size": world, "peers": peers, "keeps": len(peers)}
            node.begin(self.round, restore, persists=not first, **place)
            first += node.workers

    def run(self, mesh: str, iterations: int, fault: str = "") -> tuple[int, dict[str, Any]]:
        """One round: the exit code, and the whole state that rank 0 gathered."""
        return self.script([f"{node.path}*{node.workers}" for node in self.nodes], mesh, iterations, fault)

    def script(self, agents: list[str], mesh: str, iterations: int, fault: str = "") -> tuple[int, dict[str, Any]]:
        result = self._folder / f"result-{self.round}"
        variables = {"EVERSTEP_STORE": str(self._folder / "alone"), "EVERSTEP_ROUND": str(self.round)}
        variables |= {"EVERSTEP_FAULT_DIR": str(self._folder / "faults"), "EVERSTEP_FAULT": fault}
        command = [str(SCRIPT), mesh, str(iterations), str(result), *agents]
        code = self._forks.run(command, variables, self._folder / "log")
        for node in self.nodes:
            for local_rank in range(node.workers):
                node.keeper.worker_died(local_rank)
        return code, torch.load(result) if result.exists() else {}


def _fields(holding: Holding) -> tuple[int, int, int]:
    return holding.round, holding.iteration, holding.shard


@pytest.fixture
def job(make_node: Callable[..., Node], tmp_path: Path, forks: Forks) -> Job:
    return Job(make_node, tmp_path, forks)


@pytest.mark.long
def test_ranks_of_fsdp2_are_killed_and_a_node_is_lost_and_the_training_ends_as_if_undisturbed(
    job: Job, same: Any
) -> None:
    one, other = job.node(), job.node()
    job.begin([one, other], None)
    code, undisturbed = job.run("fsdp", 6)
    assert code == 0
    survivors = [job.node(), job.node()]
    job.begin(survivors, None)
    assert job.run("fsdp", 6, "checkpoint.mid_copy,iteration=4,rank=1=kill")[0]
    restore = choose_restore(job.holdings())
    assert restore is not None
    assert restore.iteration == 3
    job.begin(survivors, restore)
    assert job.run("fsdp", 6, "checkpoint.after_commit,iteration=5,rank=1=kill")[0]
    assert [node.keeper.wait_for_restore(0).source for node in survivors] == ["memory", "memory"]
    survivors.pop().close()
    restore = choose_restore(survivors[0].keeper.holdings(survivors[0].address))
    assert restore is not None
    assert restore.iteration in (4, 5)
    job.begin([*survivors, job.node()], restore)
    code, again = job.run("fsdp", 6)
    assert code == 0
    assert [node.keeper.wait_for_restore(0).source for node in job.nodes] == ["memory", "peer worker-3-0"]
    assert sorted(os.listdir(job._folder / "faults")) == ["checkpoint.after_commit", "checkpoint.mid_copy"]
    assert again.pop("done") == restore.iteration
    undisturbed.pop("done")
    assert same(again, undisturbed)


def test_two_ranks_become_three_and_then_one_and_another_mesh_reading_what_they_need(
    job: Job, same: Any, store: Any
) -> None:
    job.begin([job.node(workers=2)], None)
    code, saved_state = job.run("fsdp", 3)
    assert code == 0
    folder = job.manifests[-1].rpartition("/")[0]
    commit = read_commit(store, folder)
    assert [(holding.shard, holding.shards) for holding in commit.holdings(folder)] == [(0, 2), (1, 2)]
    whole, iteration = read_committed(store, folder, commit)
    assert iteration == 3
    assert same(dict(whole["model"]), dict(saved_state["model"]))
    for mesh, nodes in (
        ("fsdp", [job.node(workers=2), job.node()]),
        ("plain", [job.node()]),
        ("tp", [job.node(workers=2)]),
        ("both", [job.node(workers=4)]),
    ):
        stored = [holding for node in job.nodes for holding in node.persisted]
        restore = choose_restore(stored)
        assert restore is not None
        assert restore.iteration == 3
        job.begin(nodes, restore)
        code, state = job.run(mesh, 3)
        assert code == 0
        assert state["done"] == 3
        assert same(state["model"], saved_state["model"])
        assert same(state["optimizer"], saved_state["optimizer"])
        for node in nodes:
            node.persisted += [holding for holding in stored if holding not in node.persisted][: len(stored)]


@pytest.mark.long
def test_without_an_agent_ranks_put_their_own_shards_and_others_load_what_they_need(job: Job, same: Any) -> None:
    code, saved_state = job.script(["*2"], "fsdp", 3)
    assert code == 0
    job.round = 1
    code, state = job.script(["*3"], "fsdp", 3)
    assert code == 0
    assert (saved_state.pop("done"), state.pop("done")) == (0, 3)
    assert same(state, saved_state)
    places = list_checkpoints(DirectoryStore(job._folder / "alone"), "jobs/job/")
    assert [
        (checkpoint.round, checkpoint.iteration, checkpoint.shards, checkpoint.commit is not None)
        for checkpoint in places
    ] == [(1, 3, 2, True)]
