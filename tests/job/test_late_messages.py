"""Messages that come late, twice, or from an agent that is no more: each is recognised, and changes nothing."""

from everstep.runtime.job.assignments import directive, is_spent, seat_for
from everstep.runtime.job.events import (
    DeletionDue,
    HeartbeatSeen,
    Joined,
    LeaveAnnounced,
    ManifestWritten,
    ShardStored,
    WorkerExited,
)
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.records import FaultJudged, NodeStrayed
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Action, Heartbeat, Leaving, Persisted, WorkerExit
from everstep.runtime.protocol.rounds import Seat
from tests.job.world import World, by_themselves, platform

A, B = "worker-0-0", "worker-1-0"


def running() -> World:
    world = World(platform({"worker": RoleSpec(2, 2)}))
    world.join_all()
    assert world.number == 1
    return world


def joins(world: World, name: str) -> list[Joined]:
    return [event for event in world.sent if isinstance(event, Joined) and event.join.node == name]


def test_a_late_copy_of_a_join_does_not_make_a_node_wait_that_was_told_to_join_again() -> None:
    world = running()
    (late,) = joins(world, B)
    world.exit(A, -9)
    world.join(A)
    assert world.send(late)
    assert world.state.nodes[B].phase is NodePhase.REJOINING
    assert world.state.phase == "forming"
    order = directive(world.state, B)
    assert order is not None
    assert (order.action, order.round) == (Action.REJOIN, 1)
    world.join(B)
    assert world.number == 2


def test_nor_after_a_takeover_or_when_it_asked_again_for_a_seat_that_it_had() -> None:
    world = World(platform({"worker": RoleSpec(2, 2)}))
    world.join(B)
    world.join(A)
    world.join(B, after_round=0)  # Its long poll ended just before the round was formed.
    assert world.number == 1
    first, again = joins(world, B)
    seat = seat_for(world.state, again.join)
    assert isinstance(seat, Seat)
    world.exit(A, -9)
    world.takeover()
    for late in (first, again):
        world.send(late)
        assert world.state.nodes[B].phase is NodePhase.REJOINING
        assert is_spent(world.state, late.join), "an agent that waits for it is to ask anew"


def test_a_join_that_is_repeated_is_answered_as_the_first_time() -> None:
    world = running()
    (answer,) = joins(world, B)
    before = world.state
    world.send(answer)
    assert world.state is before
    seat = seat_for(world.state, answer.join)
    assert seat is not None
    assert seat.round == 1


def test_an_agent_that_is_no_more_does_not_take_its_successors_place() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 2)}))
    world.join("a")
    world.join("b")
    (late,) = joins(world, "b")
    world.join("b", anew=True)
    world.join("a")
    assert (world.number, world.state.nodes["b"].address) == (2, "b.1:1")
    world.send(late)
    assert (world.state.phase, world.state.nodes["b"].address) == ("running", "b.1:1")
    order = directive(world.state, "b", life=late.join.life)
    assert order is not None
    assert (order.action, order.life) == (Action.REJOIN, 1), "should it be there in truth, it learns of the other"


def test_what_an_earlier_agent_was_told_is_not_for_one_that_has_not_joined() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 1)}))
    world.join("a")
    world.send(LeaveAnnounced(Leaving("a", "SIGTERM", 0.0)))
    order = directive(world.state, "a")
    assert order is not None
    assert order.action is Action.LEAVE
    assert directive(world.state, "a", life=1) is None


def test_a_node_that_is_in_another_round_than_its_seats_is_told_to_join_again_until_it_does() -> None:
    world = running()
    world.exit(A, -9)
    world.join_all()
    assert world.number == 2

    def beat(seen_number: int) -> int:
        """Of B, still in round 1; returns how often it was told so by now."""
        world.send(HeartbeatSeen(Heartbeat(B, 1, seen=seen_number, join=2)))
        return sum(isinstance(record, NodeStrayed) for record in world.records)

    assert beat(seen_number=0) == 1
    order = directive(world.state, B)
    assert order is not None
    assert (order.action, order.round) == (Action.REJOIN, 1)
    assert beat(seen_number=0) == 1, "it was told and has not heard it yet"
    assert beat(seen_number=order.number) == 2, "it has heard it and is there still"
    world.join(B, after_round=1)
    seat = seat_for(world.state, joins(world, B)[-1].join)
    assert seat is not None
    assert (seat.round, world.number) == (2, 2)
    order = directive(world.state, B)
    assert order is not None
    assert order.action is Action.CONTINUE


def test_a_heartbeat_sent_before_the_join_or_while_it_waits_for_its_seat_contradicts_nothing() -> None:
    world = running()
    world.exit(A, -9)
    world.join_all()
    world.send(HeartbeatSeen(Heartbeat(B, 1, join=1)))
    world.send(HeartbeatSeen(Heartbeat(B, 1, join=2, waits=True)))
    assert not [record for record in world.records if isinstance(record, NodeStrayed)]


def test_a_node_that_was_told_of_an_earlier_round_is_told_of_the_end_of_this_one() -> None:
    world = running()
    world.exit(A, -9)
    world.join_all()
    world.send(HeartbeatSeen(Heartbeat(B, 1, join=2)))
    before = directive(world.state, B)
    world.exit(A, -9)
    order = directive(world.state, B)
    assert before is not None
    assert order is not None
    assert (order.action, order.round) == (Action.REJOIN, 2)
    assert order.number > before.number


def test_a_death_that_is_told_twice_costs_one_restart() -> None:
    world = running()
    died = WorkerExited(WorkerExit(A, 1, 0, 0, -9, 3))
    world.send(died)
    world.send(died)
    world.join(A)
    world.send(died)
    assert world.state.restarts == {"worker": 1}
    assert len([record for record in world.records if isinstance(record, FaultJudged)]) == 1


def test_a_notice_of_an_earlier_agent_is_not_this_ones() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 2)}))
    world.join("a")
    world.join("b")
    world.join("b", anew=True)
    world.send(LeaveAnnounced(Leaving("b", "SIGTERM", 5.0, life=0)))
    assert not world.state.nodes["b"].is_leaving
    world.send(LeaveAnnounced(Leaving("b", "SIGTERM", 5.0, life=1)))
    assert world.state.nodes["b"].is_leaving


def test_a_shard_that_was_deleted_is_not_taken_for_stored_again() -> None:
    world = running()
    stored_messages = [ShardStored(Persisted(A, Holding(1, iteration, key=f"k{iteration}"))) for iteration in (5, 6)]
    for iteration, stored in zip((5, 6), stored_messages, strict=True):
        world.send(stored)
        world.send(ManifestWritten(1, iteration, "m"))
    world.send(DeletionDue(((1, 5),)))
    for late in stored_messages:
        world.send(late)
    assert list(world.state.checkpoints) == [(1, 6)]
