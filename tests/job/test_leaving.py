"""Nodes that leave well: preemption notices, scaling down, what they hand over, and what it costs (nothing)."""

from everstep.runtime.job.assignments import directive
from everstep.runtime.job.events import LeaveAnnounced, NodeFinishedRound, NodeGone, ScaleRequested
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import FaultJudged, NodeRequested, RoundBroken
from everstep.runtime.job.spec import Patience, RoleSpec
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Action, Finished, Leaving
from tests.job.world import World, by_themselves, platform


def running(nodes: int = 2, **fields: object) -> World:
    """A job of which all nodes train."""
    world = World(platform({"worker": RoleSpec(nodes, 1)}, **fields))
    world.join_all()
    return world


def notice(world: World, name: str, grace_s: float = 30.0) -> None:
    world.send(LeaveAnnounced(Leaving(name, "SIGTERM", grace_s)))


def action(world: World, name: str) -> Action:
    order = directive(world.state, name)
    assert order is not None
    return order.action


def members(world: World) -> list[str]:
    assert world.state.round is not None
    return [member.node for role in world.state.round.members.values() for member in role]


def test_a_notice_asks_for_a_replacement_elsewhere_at_once_and_the_round_goes_on() -> None:
    world = running()
    notice(world, "worker-1-0")
    request = world.records[-1]
    assert isinstance(request, NodeRequested)
    assert (request.node, request.replaces, request.host) == ("worker-1-1", "worker-1-0", "local-2")
    assert action(world, "worker-1-0") is Action.PERSIST
    assert action(world, "worker-0-0") is Action.CONTINUE
    assert world.number == 1
    assert world.state.phase == "running"


def test_the_round_is_broken_up_as_soon_as_the_replacement_waits() -> None:
    world = running()
    notice(world, "worker-1-0")
    world.join("worker-1-1", after_round=0)
    assert action(world, "worker-1-0") is Action.REJOIN
    world.join_all()
    assert (world.number, members(world)) == (2, ["worker-0-0", "worker-1-1"])
    assert action(world, "worker-1-0") is Action.LEAVE
    assert world.state.nodes["worker-1-0"].left_because is Reason.PREEMPTED


def test_without_a_replacement_the_round_is_broken_up_shortly_before_the_grace_ends() -> None:
    world = running()
    world.send(NodeGone("worker-1-0", "test"))  # worker-1-1 is on its way and does not come.
    world.join("worker-0-0")
    world.wait(15)
    began = world.now
    notice(world, "worker-0-0", 30.0)
    world.wait(24)
    assert world.state.phase == "running"
    world.wait(2)
    broken = [record for record in world.records if isinstance(record, RoundBroken)][-1]
    assert (broken.reason, broken.time) == (Reason.PREEMPTED, began + 25)


def test_what_only_the_leaving_node_holds_is_read_from_it_before_it_goes() -> None:
    world = running()
    world.held["worker-1-0"] = (Holding(1, 7, node="worker-1-0", address="a"),)
    notice(world, "worker-1-0")
    world.join("worker-1-1", after_round=0)
    world.join_all()
    assert world.state.round is not None
    assert world.state.round.restore is not None
    assert [source.node for source in world.state.round.restore.sources] == ["worker-1-0"]
    assert world.state.nodes["worker-1-0"].phase is NodePhase.WAITING
    world.beat("worker-0-0", 8)
    assert world.state.nodes["worker-1-0"].phase is NodePhase.WAITING
    world.beat("worker-1-1", 8)
    assert world.state.nodes["worker-1-0"].phase is NodePhase.RELEASED


def test_after_a_takeover_what_only_the_leaving_node_holds_is_still_read_from_it() -> None:
    world = running()
    world.held["worker-1-0"] = (Holding(1, 7, node="worker-1-0", address="a"),)
    notice(world, "worker-1-0")
    world.join("worker-1-1", after_round=0)
    world.join_all()
    world.takeover()
    for name in ("worker-0-0", "worker-1-1"):
        world.beat(name, 7)  # What the round began from; none has trained yet.
    assert world.state.nodes["worker-1-0"].phase is NodePhase.WAITING
    for name in ("worker-0-0", "worker-1-1"):
        world.beat(name, 8)
    assert world.state.nodes["worker-1-0"].phase is NodePhase.RELEASED


def test_a_leaving_node_is_let_go_when_its_grace_ends_whatever_it_holds() -> None:
    world = running()
    world.held["worker-1-0"] = (Holding(1, 7, node="worker-1-0", address="a"),)
    notice(world, "worker-1-0", 20.0)
    world.join("worker-1-1", after_round=0)
    world.join_all()
    world.wait(20)
    assert world.state.nodes["worker-1-0"].phase is NodePhase.RELEASED


def test_leaving_counts_against_no_limit() -> None:
    world = running()
    for launch in range(12):
        notice(world, f"worker-1-{launch}")
        world.join(f"worker-1-{launch + 1}", after_round=0)
        world.join_all()
        world.send(NodeGone(f"worker-1-{launch}", "left"))
    assert (world.state.relaunches, world.state.restarts, world.state.given_up) == ({}, {}, {})
    assert not [record for record in world.records if isinstance(record, FaultJudged)]
    assert "worker-1-12" in members(world)
    assert world.state.stalled == 0


def test_giving_way_to_somebody_more_important_counts_against_no_limit_announced_or_not() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}))
    world.join("worker-0-0")
    for launch in range(12):  # Before it ever joined.
        world.send(NodeGone(f"worker-1-{launch}", "its pod was deleted", 137, gave_way=True))
    world.join("worker-1-12", after_round=0)
    world.join_all()
    assert len(members(world)) == 2
    world.send(NodeGone("worker-1-12", "its pod was deleted", gave_way=True))  # In a round.
    assert world.state.phase == "forming"
    world.join("worker-1-13", after_round=0)
    world.join_all()
    assert "worker-1-13" in members(world)
    assert (world.state.relaunches, world.state.restarts, world.state.given_up) == ({}, {}, {})
    assert not [record for record in world.records if isinstance(record, FaultJudged)]


def test_a_second_notice_changes_nothing_unless_it_is_sooner() -> None:
    world = running()
    notice(world, "worker-1-0", 30.0)
    before = world.state
    world.now += 1
    notice(world, "worker-1-0", 30.0)
    assert world.state.nodes["worker-1-0"] == before.nodes["worker-1-0"]
    notice(world, "worker-1-0", 0.0)
    assert world.state.phase == "forming"


def test_a_node_that_is_in_no_round_leaves_at_once() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}))
    world.join("worker-0-0")
    notice(world, "worker-0-0")
    assert action(world, "worker-0-0") is Action.LEAVE
    assert world.state.nodes["worker-0-1"].phase is NodePhase.REQUESTED


def test_when_others_have_finished_a_leaving_node_is_left_to_finish_too() -> None:
    world = running()
    world.send(NodeFinishedRound(Finished("worker-0-0", 1)))
    notice(world, "worker-1-0", 20.0)
    world.wait(60)
    assert world.state.phase == "running"
    world.send(NodeFinishedRound(Finished("worker-1-0", 1)))
    assert world.state.ended is not None


def test_scaling_down_lets_the_highest_indices_hand_over_first() -> None:
    world = running(3)
    world.held["worker-2-0"] = (Holding(1, 7, node="worker-2-0", address="a"),)
    world.send(ScaleRequested("worker", 2))
    assert action(world, "worker-2-0") is Action.REJOIN
    world.join_all()
    assert members(world) == ["worker-0-0", "worker-1-0"]
    assert world.state.nodes["worker-2-0"].phase is NodePhase.WAITING
    for name in members(world):
        world.beat(name, 8)
    assert action(world, "worker-2-0") is Action.LEAVE
    assert world.state.relaunches == {}


def test_nodes_that_come_by_themselves_leave_without_a_replacement() -> None:
    world = World(by_themselves({"worker": RoleSpec(3, 1)}))
    for name in ("n0", "n1", "n2"):
        world.join(name)
    notice(world, "n2", 0.0)
    world.join_all()
    assert members(world) == ["n0", "n1"]
    assert action(world, "n2") is Action.LEAVE
    assert not [record for record in world.records if isinstance(record, NodeRequested)]


def test_an_error_in_a_round_that_a_leaving_node_ended_may_be_its_echo() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 1, restart_limit=0)}))
    for name in ("n0", "n1"):
        world.join(name)
    notice(world, "n1", 20.0)
    world.exit("n0", 1, error="Connection closed by peer")  # n1 ended its workers before it was told to.
    world.join("n0")
    world.wait(20)
    assert world.state.nodes["n1"].phase is NodePhase.RELEASED
    assert members(world) == ["n0"]
    assert not [record for record in world.records if isinstance(record, FaultJudged)]


def test_an_error_told_after_a_leaving_node_has_joined_again_is_an_echo() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 1)}, patience=Patience(max_restarts=0)))
    for name in ("n0", "n1"):
        world.join(name)
    notice(world, "n0", 20.0)
    world.wait(20.0 - world.spec.patience.handover_s)
    assert world.names(NodePhase.REJOINING) == ["n0", "n1"]
    world.join("n0")  # Its workers are ended; it waits, and is let go when a round without it is formed.
    world.exit("n1", 1, error="ConnectionError: a rank is gone")  # Before n1 heard that the round is over.
    world.join("n1")
    assert world.state.ended is None
    assert members(world) == ["n1"]
    assert not [record for record in world.records if isinstance(record, FaultJudged)]
