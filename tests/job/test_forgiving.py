"""What a master forgives: that it was away itself, and what happened before the job was resumed by another master."""

import pytest

from everstep.runtime.job.events import NodeFinishedRound, StopRequested, Tick
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import MasterAway, NodeRequested
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.messages import Finished
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
