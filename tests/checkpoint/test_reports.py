"""Reports that nodes without a master leave beside their shards: the next master commits by them what is whole."""

from pathlib import Path

import msgspec
import pytest

from everstep.runtime.checkpoint.stored.keys import manifest_key, report_key, shard_key
from everstep.runtime.checkpoint.stored.reports import leave_report
from everstep.runtime.checkpoint.stored.verify import list_checkpoints
from everstep.runtime.job.events import Opened, ShardStored
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.master.survey import survey_store
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Persisted
from everstep.runtime.store import DirectoryStore
from tests.job.world import World, platform

DATA, DIGEST = b"a shard", "0" * 32


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """It is empty."""
    return DirectoryStore(tmp_path)


def stored_shard(store: DirectoryStore, shard: int, shards: int, iteration: int = 7, size: int = len(DATA)) -> Holding:
    """A shard of iteration 7 of round 1, and the report that it has that size."""
    key = shard_key("j", 1, iteration, shard)
    store.put(key, DATA)
    holding = Holding(1, iteration, shard, shards, size, key=key, digest=DIGEST)
    leave_report(store, holding)
    return holding


def job_that_lost_all(*journaled: Holding) -> World:
    """All nodes of its first round are gone, and so is its master, which had journaled these shards."""
    world = World(platform({"worker": RoleSpec(1, 1)}))
    world.join_all()
    (name,) = world.names(NodePhase.RUNNING)
    for holding in journaled:
        world.send(ShardStored(Persisted(name, holding)))
    world.exit(name, -9)
    world.takeover()
    return world


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("journaled", [0, 1])
def test_a_job_goes_on_from_what_its_nodes_left_without_a_master(
    store: DirectoryStore, shards: int, journaled: int
) -> None:
    holdings = [stored_shard(store, shard, shards) for shard in range(shards)]
    world = job_that_lost_all(*holdings[:journaled])
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
    assert survey_store(store, "j", world.state).unjournaled == (), "the journal knows of it now"


def test_of_two_nodes_that_put_one_iteration_the_committed_one_counts_whichever_was_journaled(
    store: DirectoryStore,
) -> None:
    left = stored_shard(store, 0, 1)
    other = msgspec.structs.replace(left, key=shard_key("j", 1, 7, 0, "1" * 32), digest="1" * 32)
    store.put(other.key, DATA)
    world = job_that_lost_all(other)
    survey = survey_store(store, "j", world.state)
    assert survey.refusals == ()
    world.send(Opened(survey))
    assert [shard.digest for shard in world.state.checkpoints[1, 7].shards] == [left.digest]


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
