"""Reports that nodes without a master leave beside their shards: the next master commits by them what is whole."""

from pathlib import Path

import pytest

from everstep.runtime.checkpoint.stored.keys import manifest_key, report_key, shard_key
from everstep.runtime.checkpoint.stored.reports import leave_report
from everstep.runtime.checkpoint.stored.verify import list_checkpoints
from everstep.runtime.job.events import Opened
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.master.survey import survey_store
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import DirectoryStore
from tests.job.world import World, platform

DATA, DIGEST = b"a shard", "0" * 32


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """It is empty."""
    return DirectoryStore(tmp_path)


def stored_shard(store: DirectoryStore, shard: int, shards: int, iteration: int = 7, size: int = len(DATA)) -> None:
    """A shard of iteration 7 of round 1, and the report that it has that size."""
    key = shard_key("j", 1, iteration, shard)
    store.put(key, DATA)
    leave_report(store, Holding(1, iteration, shard, shards, size, key=key, digest=DIGEST))


def job_that_lost_all() -> World:
    """All nodes of its first round are gone, and so is its master."""
    world = World(platform({"worker": RoleSpec(1, 1)}))
    world.join_all()
    world.exit(world.names(NodePhase.RUNNING)[0], -9)
    world.takeover()
    return world


@pytest.mark.parametrize("shards", [1, 2])
def test_a_job_goes_on_from_what_its_nodes_left_without_a_master(store: DirectoryStore, shards: int) -> None:
    for shard in range(shards):
        stored_shard(store, shard, shards)
    world = job_that_lost_all()
    survey = survey_store(store, "j", world.state)
    assert [holding.key for holding in survey.unjournaled] == [manifest_key("j", (1, 7))]
    (checkpoint,) = list_checkpoints(store)
    assert checkpoint.commit is not None
    assert (checkpoint.shards, checkpoint.size, checkpoint.wrong) == (shards, shards * len(DATA), "")
    world.send(Opened(survey))
    world.join_all()
    restore = world.state.round.restore if world.state.round else None
    assert restore is not None
    assert restore.iteration == 7


@pytest.mark.parametrize("how", ["a shard is missing", "another size", "no report", "a damaged report", "moved"])
def test_what_is_not_whole_is_not_committed(store: DirectoryStore, how: str) -> None:
    stored_shard(store, 0, 2)
    if how != "a shard is missing":
        stored_shard(store, 1, 2, size=len(DATA) + (how == "another size"))
    report = report_key(shard_key("j", 1, 7, 1))
    if how == "no report":
        store.delete(report)
    elif how == "a damaged report":
        store.put(report, b"{")
    elif how == "moved":
        store.put(report, store.get(report).replace(b"000000007", b"000000008"))
    assert survey_store(store, "j", job_that_lost_all().state).unjournaled == ()
    (checkpoint,) = list_checkpoints(store)
    assert checkpoint.commit is None


def test_what_a_master_has_committed_stays_as_it_is(store: DirectoryStore) -> None:
    stored_shard(store, 0, 1)
    survey_store(store, "j", job_that_lost_all().state)
    before = store.get(manifest_key("j", (1, 7)))
    assert len(survey_store(store, "j", job_that_lost_all().state).unjournaled) == 1
    assert store.get(manifest_key("j", (1, 7))) == before
