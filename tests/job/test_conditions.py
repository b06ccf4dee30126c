"""The conditions of a job: one holds, earlier ones stay, each with reason, message and times."""

from everstep.runtime.job.conditions import KEPT_CONDITIONS, NAMED, ConditionType
from everstep.runtime.job.events import NodeFinishedRound, NodeGone, Opened, ScaleRequested, StopRequested
from everstep.runtime.job.fold import fold
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.messages import Finished
from tests.job.world import World, platform

C = ConditionType


def kinds(world: World) -> list[ConditionType]:
    return [condition.type for condition in world.state.conditions]


def test_a_jobs_life_is_told_as_ai_training_job_tells_it() -> None:
    world = World(platform({"trainer": RoleSpec(3, 1, max_nodes=4)}))
    assert kinds(world) == [C.PENDING]
    world.now += 1
    world.join("trainer-0-0")
    assert kinds(world) == [C.PENDING, C.CREATING]
    assert "1 nodes have joined, 2 are on their way" in world.state.conditions[-1].message
    world.now += 5
    world.join_all()
    world.now += 100
    world.send(ScaleRequested("trainer", 4))
    assert world.state.conditions[-1].message == ("4 trainer nodes are requested; 3 train; on their way: trainer-3-0")
    world.now += 5
    world.join("trainer-3-0", after_round=0)
    world.join_all()
    assert kinds(world) == [C.PENDING, C.CREATING, C.RUNNING, C.SCALING, C.RUNNING]
    world.now += 9
    world.send(NodeGone("trainer-1-0", "pod deleted"))
    last = world.state.conditions[-1]
    assert (last.type, last.reason, last.holds, last.since) == (C.RESTARTING, "NodeLost", True, world.now)
    world.join_all()
    for name in ("trainer-0-0", "trainer-1-1", "trainer-2-0", "trainer-3-0"):
        world.send(NodeFinishedRound(Finished(name, world.number)))
    assert kinds(world)[-3:] == [C.RESTARTING, C.RUNNING, C.SUCCEEDED]
    assert [condition.since for condition in world.state.conditions] == sorted(
        condition.since for condition in world.state.conditions
    )
    assert world.state.restarts == {"trainer": 1}


def test_a_large_growth_names_its_first_nodes() -> None:
    world = World(platform({"trainer": RoleSpec(1, 1, max_nodes=30)}))
    world.join_all()
    world.send(ScaleRequested("trainer", NAMED + 3))
    names = ", ".join(f"trainer-{index}-0" for index in range(1, NAMED + 1))
    assert world.state.conditions[-1].message.endswith(f"; 1 train; on their way: {names} and 2 more")


def test_scaling_to_what_trains_already_is_running() -> None:
    world = World(platform({"trainer": RoleSpec(3, 1)}))
    world.join("trainer-0-0")
    world.join("trainer-1-0")
    world.wait(30)
    assert world.number == 1
    world.send(ScaleRequested("trainer", 2))
    assert world.state.conditions[-1].type is C.RUNNING


def test_a_stopped_job_has_failed_and_is_pending_when_it_is_taken_up_again() -> None:
    world = World(platform())
    world.send(StopRequested("told to stop"))
    assert (world.state.conditions[-1].type, world.state.conditions[-1].reason) == (C.FAILED, "JobStopped")
    world.takeover()
    world.send(Opened())
    assert world.state.conditions[-1].type is C.PENDING


def test_a_long_history_keeps_its_newest_conditions() -> None:
    world = World(platform({"trainer": RoleSpec(2, 1)}))
    world.join_all()
    for iteration in range(KEPT_CONDITIONS):
        world.exit("trainer-0-0", -9, iteration=iteration + 1)
        world.join_all()
    assert len(world.state.conditions) == KEPT_CONDITIONS
    assert fold(world.records).conditions == world.state.conditions
