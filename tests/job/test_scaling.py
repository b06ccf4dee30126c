"""Another number of nodes is requested while a job runs, and some of them may not come."""

from everstep.runtime.job.events import NodeGone, ScaleRequested
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import DesiredChanged
from everstep.runtime.job.replicas import desired_size
from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.spec import RoleSpec
from tests.job.world import World, by_themselves, platform


def members(world: World) -> list[str]:
    assert world.state.round is not None
    return [member.node for role in world.state.round.members.values() for member in role]


def changes(world: World) -> list[DesiredChanged]:
    return [record for record in world.records if isinstance(record, DesiredChanged)]


def test_a_job_may_be_scaled_up_to_its_maximum() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.now += 1
    assert not world.send(ScaleRequested("worker", 5))
    assert world.send(ScaleRequested("worker", 4))
    world.join("worker-2-0", after_round=0)
    world.join("worker-3-0", after_round=0)
    world.join_all()
    assert len(members(world)) == 4


def test_a_scaling_whose_nodes_do_not_come_in_time_is_given_up() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4, scale_out_timeout_s=60.0)}))
    world.join_all()
    world.now += 1
    world.send(ScaleRequested("worker", 4))
    asked_at = world.now
    world.join("worker-2-0", after_round=0)
    assert world.state.phase is JobPhase.RUNNING, "more are about to come: one break is enough"
    world.wait(10)
    for name in world.names(NodePhase.REJOINING):
        world.join(name)
    assert len(members(world)) == 3
    world.wait(49)
    assert world.state.nodes["worker-3-0"].phase is NodePhase.REQUESTED
    world.wait(1)
    changed = [record for record in world.records if isinstance(record, DesiredChanged)][-1]
    assert (changed.nodes, changed.time) == (3, asked_at + 60)
    assert "did not join within 60 s" in changed.detail
    assert world.state.nodes["worker-3-0"].phase is NodePhase.RELEASED
    assert world.state.phase is JobPhase.RUNNING


def test_a_request_may_bring_its_own_time_and_the_next_one_has_the_roles_again() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("worker", 4, 60.0))
    asked_at = world.now
    world.wait(59)
    assert world.state.nodes["worker-3-0"].phase is NodePhase.REQUESTED
    world.wait(1)
    changed = [record for record in world.records if isinstance(record, DesiredChanged)][-1]
    assert (changed.nodes, changed.time, changed.detail) == (2, asked_at + 60, "the others did not join within 60 s")
    world.send(ScaleRequested("worker", 3))
    world.wait(120)
    assert world.state.nodes["worker-2-1"].phase is NodePhase.REQUESTED, "no time-out of an earlier request"


def test_a_new_node_that_fails_before_it_joins_gets_no_more_time() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("worker", 4, 60.0))
    asked_at = world.now
    for launch in range(2):
        world.wait(20)
        world.send(NodeGone(f"worker-2-{launch}", "no such image"))
    assert world.names(NodePhase.REQUESTED) == ["worker-2-2", "worker-3-0"]
    world.wait(20)
    assert (changes(world)[-1].nodes, changes(world)[-1].time) == (2, asked_at + 60)
    assert not world.names(NodePhase.REQUESTED)
    assert world.state.phase is JobPhase.RUNNING


def test_the_replacement_of_a_node_that_has_trained_is_not_given_up_with_the_new_ones() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("worker", 3, 60.0))
    asked_at = world.now
    world.send(NodeGone("worker-1-0", "its machine failed"))
    world.send(NodeGone("worker-1-1", "no such image"))
    world.wait(60)
    assert (changes(world)[-1].nodes, changes(world)[-1].time) == (2, asked_at + 60)
    assert world.names(NodePhase.REQUESTED) == ["worker-1-2"]


def test_where_nodes_come_by_themselves_none_is_given_up_for_coming_late() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 1)}))
    world.join("worker-0-0")
    assert not world.send(ScaleRequested("worker", 1, 60.0))
    assert world.send(ScaleRequested("worker", 1))


def test_nodes_that_an_earlier_request_asked_for_are_given_up_by_the_newest_ones_time() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=8)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("worker", 6, 60.0))
    world.wait(30)
    world.send(ScaleRequested("worker", 8, 60.0))
    asked_at = world.now
    world.wait(59)
    assert len(world.names(NodePhase.REQUESTED)) == 6
    world.wait(1)
    assert (changes(world)[-1].nodes, changes(world)[-1].time) == (2, asked_at + 60)
    assert not world.names(NodePhase.REQUESTED)


def test_a_request_for_another_role_leaves_a_roles_time_alone() -> None:
    world = World(platform({"worker": RoleSpec(1, 1, max_nodes=2), "ps": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("ps", 4, 60.0))
    asked_at = world.now
    world.wait(30)
    world.send(ScaleRequested("worker", 2))
    world.wait(30)
    assert (changes(world)[-1].role, changes(world)[-1].nodes, changes(world)[-1].time) == ("ps", 2, asked_at + 60)
    world.wait(60)
    assert world.names(NodePhase.REQUESTED) == ["worker-1-0"]


def test_a_time_may_be_given_to_a_size_that_is_already_wanted() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("worker", 4))
    world.wait(30)
    world.send(ScaleRequested("worker", 4, 60.0))
    asked_at, count_before = world.now, len(changes(world))
    world.wait(10)
    world.send(ScaleRequested("worker", 4, 60.0))
    assert len(changes(world)) == count_before, "that is what is wanted already"
    world.wait(50)
    assert (changes(world)[-1].nodes, changes(world)[-1].time) == (2, asked_at + 60)


def test_what_was_given_up_is_wanted_again_only_by_a_new_request() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.join_all()
    world.wait(1)
    world.send(ScaleRequested("worker", 4, 60.0, stamp=7))
    world.wait(60)
    assert desired_size(world.state, world.spec, "worker") == 2
    assert decode_snapshot(encode_snapshot(world.state)) == world.state
    world.takeover()
    world.send(ScaleRequested("worker", 4, 60.0, stamp=7))
    assert desired_size(world.state, world.spec, "worker") == 2, "the next master reads the same request"
    world.send(ScaleRequested("worker", 4, 60.0, stamp=8))
    assert desired_size(world.state, world.spec, "worker") == 4
    world.send(ScaleRequested("worker", 4, 60.0, stamp=9))
    world.wait(60)
    world.takeover()
    world.send(ScaleRequested("worker", 4, 60.0, stamp=9))
    assert desired_size(world.state, world.spec, "worker") == 2
    world.send(ScaleRequested("worker", 4))
    assert desired_size(world.state, world.spec, "worker") == 4, "a person asks the master itself"


def test_what_stands_at_the_start_is_no_request() -> None:
    world = World(platform({"worker": RoleSpec(2, 1, max_nodes=4)}))
    world.send(ScaleRequested("worker", 2, stamp=0))
    assert not changes(world)
