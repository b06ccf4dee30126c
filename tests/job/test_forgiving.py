"""What a master forgives: that it was away itself, and what happened before the job was resumed by another master."""

import pytest

from everstep.runtime.checkpoint.stored.keys import manifest_key, shard_key
from everstep.runtime.job.events import ManifestWritten, NodeFinishedRound, ShardStored, StopRequested, Tick
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import MasterAway, NodeRequested
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Finished, Persisted
from tests.job.world import World, by_themselves, platform


def test_a_job_that_was_stopped_when_some_had_finished_asks_for_its_nodes_when_it_is_taken_up_again() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}))
    world.join_all()
    world.send(NodeFinishedRound(Finished("worker-0-0", 1)))
    world.send(StopRequested("stopped by the user"))
    assert world.state.ended is not None
    assert world.state.ended.result is JobResult.STOPPED
    world.takeover()
    assert world.names(NodePhase.REQUESTED) == ["worker-0-1", "worker-1-1"]
    for name in world.names(NodePhase.REQUESTED):
        world.join(name, after_round=0)
    assert (world.state.phase, world.number) == (JobPhase.RUNNING, 2)


@pytest.mark.parametrize("spec", [platform({"worker": RoleSpec(2, 2)}), by_themselves({"worker": RoleSpec(2, 2)})])
def test_a_master_that_was_frozen_while_a_round_formed_waits_for_nodes_as_long_as_ever(spec: object) -> None:
    world = World(spec)  # type: ignore[arg-type]
    if not world.state.nodes:
        world.join("n0")
    world.wait(100.0)
    world.now += 2 * world.spec.patience.join_timeout_s
    world.send(Tick())
    assert world.state.ended is None
    (away,) = [record for record in world.records if isinstance(record, MasterAway)]
    assert away.away_s >= 2 * world.spec.patience.join_timeout_s
    world.wait(world.spec.patience.join_timeout_s - 1.0)
    assert world.state.ended is None
    world.wait(1.0)
    termination = world.state.ended
    assert termination is not None
    assert termination.result is JobResult.NO_QUORUM
    world.check_history()


def test_a_master_that_was_frozen_does_not_charge_a_node_that_was_on_its_way() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}))
    world.join("worker-0-0")
    world.now += 2 * world.spec.patience.join_timeout_s
    world.send(Tick())
    assert world.names(NodePhase.REQUESTED) == ["worker-1-0"]
    requested_names = [record.node for record in world.records if isinstance(record, NodeRequested)]
    assert requested_names == ["worker-0-0", "worker-1-0"]


def test_an_event_that_is_refused_does_not_make_a_master_forget_that_it_was_away() -> None:
    world = World(platform({"worker": RoleSpec(2, 2)}))
    world.now += 2 * world.spec.patience.join_timeout_s
    assert not world.join("a stranger")
    world.send(Tick())
    assert world.state.ended is None
    assert [record for record in world.records if isinstance(record, MasterAway)]


def test_a_master_that_dies_with_its_nodes_again_and_again_ends_no_job_whose_checkpoints_go_on() -> None:
    world = World(by_themselves({"worker": RoleSpec(1, 1)}))
    world.join("n0")
    for iteration in range(1, 2 * world.spec.patience.no_progress):
        place = world.number, iteration
        world.send(ShardStored(Persisted("n0", Holding(*place, key=shard_key("j", *place, 0)))))
        world.send(ManifestWritten(*place, manifest_key("j", place)))
        world.takeover()
        world.join("n0", anew=True)
        assert world.state.ended is None
        assert world.state.round is not None
        assert world.state.round.restore is not None
        assert world.state.round.restore.iteration == iteration
    for _ in range(world.spec.patience.no_progress):
        assert world.state.ended is None
        world.takeover()
        world.join("n0", anew=True)
    assert world.state.ended is not None, "nothing more was stored"
    assert world.state.ended.result is JobResult.FAILED


def _stop_and_resume(world: World) -> None:
    world.send(StopRequested("stopped by the user"))
    world.takeover()


def test_a_job_that_is_taken_up_again_waits_for_its_nodes_as_when_it_began() -> None:
    world = World(platform({"worker": RoleSpec(8, 1)}))
    world.wait(20, beating=False)
    world.join_all()
    _stop_and_resume(world)
    first, *others = world.names(NodePhase.REQUESTED)
    world.wait(20, beating=False)
    world.join(first, after_round=0)
    assert world.number == 1, "one of eight is no round while the others start, however long nodes have taken before"
    for name in others:
        world.join(name, after_round=0)
    assert (world.number, len(world.names(NodePhase.RUNNING))) == (2, 8)


def test_so_it_does_where_nodes_come_by_themselves() -> None:
    world = World(by_themselves({"worker": RoleSpec(3, 2)}))
    for name in ("a", "b", "c"):
        world.join(name)
    _stop_and_resume(world)
    world.join("a", anew=True)
    world.join("b", anew=True)
    world.wait(world.spec.patience.join_window_s - 1)
    assert world.number == 1
    world.wait(1)
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, ["a", "b"])


def test_a_restart_timeout_is_not_for_the_start_of_a_job_that_is_taken_up_again() -> None:
    world = World(platform({"worker": RoleSpec(2, 2, restart_timeout_s=50.0)}))
    world.join_all()
    _stop_and_resume(world)
    world.wait(world.spec.patience.join_timeout_s - 1, beating=False)
    assert world.state.ended is None
    world.join_all()
    assert world.number == 2
    world.exit("worker-0-1", -9)
    world.join("worker-0-1")
    world.wait(51)
    assert world.state.ended is not None, "from its first round on it is"


def test_what_a_job_had_reached_before_it_was_taken_up_again_is_progress_once_more() -> None:
    world = World(platform({"worker": RoleSpec(2, 2)}))
    world.join_all()
    world.disconnect("worker-0-0", iteration=120)
    world.join_all()
    _stop_and_resume(world)
    world.join_all()
    for iteration in range(1, 2 * world.spec.patience.no_progress):
        world.stage(iteration)
        world.disconnect("worker-0-1", iteration)
        world.join_all()
        assert world.state.ended is None
