"""Who is in a round: units, order, barriers, extras, and nodes that join by themselves."""

import pytest

from everstep.runtime.job.assignments import directive, seat_for
from everstep.runtime.job.events import Joined, NodeGone, ScaleRequested, Tick
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import NodeLost, NodeRequested
from everstep.runtime.job.replicas import desired_nodes
from everstep.runtime.job.rounds import rank_order
from everstep.runtime.job.spec import JobSpec, Resources, RestartPolicy, RoleSpec
from everstep.runtime.master.left_spec import without_platform
from everstep.runtime.protocol.messages import Action, Join
from tests.job.world import World, by_themselves, platform


def members(world: World) -> list[str]:
    assert world.state.round is not None
    return [member.node for role in world.state.round.members.values() for member in role]


def test_a_round_has_a_multiple_of_the_node_unit_and_the_lowest_indices() -> None:
    world = World(platform({"worker": RoleSpec(5, 2, node_unit=2)}))
    world.join_all()
    assert members(world) == [f"worker-{index}-0" for index in range(4)]
    assert world.names(NodePhase.WAITING) == ["worker-4-0"]
    world.wait(100)
    assert world.number == 1, "one node too many for a unit is no reason to break a round"


def test_a_spare_node_takes_a_lost_nodes_seat_at_once_and_the_replacement_is_the_next_spare() -> None:
    world = World(platform({"worker": RoleSpec(2, 2, spare_nodes=1)}))
    world.join_all()
    assert (members(world), world.names(NodePhase.WAITING)) == (["worker-0-0", "worker-1-0"], ["worker-2-0"])
    world.send(NodeGone("worker-1-0", "test"))
    world.join("worker-0-0")
    assert members(world) == ["worker-0-0", "worker-2-0"]
    assert world.names(NodePhase.REQUESTED) == ["worker-1-1"]
    world.join_all()
    world.wait(100)
    assert (world.number, world.names(NodePhase.WAITING)) == (2, ["worker-1-1"])


def test_with_less_than_a_unit_more_than_the_minimum_the_round_stays_smaller() -> None:
    world = World(platform({"worker": RoleSpec(4, 2, node_unit=2)}))
    world.join_all()
    world.send(NodeGone("worker-3-0", "test"))
    for name in world.names(NodePhase.REJOINING):
        world.join(name)
    world.wait(10)
    assert members(world) == ["worker-0-0", "worker-1-0"]
    world.join("worker-3-1", after_round=0)
    world.wait(30)
    world.join_all()
    assert len(members(world)) == 4


def test_nodes_under_one_switch_get_adjacent_ranks_those_of_rank_0_first() -> None:
    lines = tuple(f"asw-{number % 3} psw-0 10.0.0.{number}" for number in range(6))
    world = World(platform({"worker": RoleSpec(6, 6)}, topology=lines))
    for number in range(6):
        name = f"worker-{number}-0"
        world.send(_join(name, ip=f"10.0.0.{(number + 1) % 6}"))
    assert world.state.round is not None
    assert rank_order(world.state.round) == [f"10.0.0.{number}" for number in (1, 4, 2, 5, 3, 0)]
    assert "in rank order: 10.0.0.1, 10.0.0.4, 10.0.0.2" in world.state.round.reason
    ranks = [seat_for(world.state, _join(name).join) for name in members(world)]
    assert [seat and seat.first_rank for seat in ranks] == list(range(6))


def test_nodes_of_one_zone_get_adjacent_ranks() -> None:
    world = World(platform({"worker": RoleSpec(4, 4)}))
    for number in range(4):
        world.send(_join(f"worker-{number}-0", zone="ab"[number % 2]))
    assert members(world) == [f"worker-{number}-0" for number in (0, 2, 1, 3)]


def test_ranks_follow_the_order_in_which_a_check_named_the_machines() -> None:
    world = World(platform({"worker": RoleSpec(3, 3)}, host_order=("worker-2-0", "worker-0-0")))
    for number in range(3):
        world.send(_join(f"worker-{number}-0"))
    assert members(world) == ["worker-2-0", "worker-0-0", "worker-1-0"]


def _join(name: str, ip: str = "", index: int = -1, address: str = "", number: int = 1, zone: str = "") -> Joined:
    return Joined(
        Join(name, "worker", name, 1, address or f"{name}:1", 1, ip=ip, index=index, number=number, zone=zone)
    )


def test_a_role_gets_its_nodes_when_those_it_waits_for_have_joined() -> None:
    world = World(platform({"launcher": RoleSpec(1, 1, waits_for=("trainer",), priority=9), "trainer": RoleSpec(2, 1)}))
    assert sorted(world.state.nodes) == ["trainer-0-0", "trainer-1-0"]
    world.join("trainer-0-0")
    assert "launcher-0-0" not in world.state.nodes, "all that were asked for are waited for, for the join window"
    world.wait(30)
    assert world.state.nodes["launcher-0-0"].phase is NodePhase.REQUESTED
    world.join("launcher-0-0")
    world.join("trainer-1-0")
    assert members(world) == ["launcher-0-0", "trainer-0-0", "trainer-1-0"]


def test_the_gang_is_asked_for_before_the_extras_and_by_priority() -> None:
    world = World(platform({"worker": RoleSpec(3, 2), "ps": RoleSpec(2, 1, priority=5)}))
    requests = [record.node for record in world.records if isinstance(record, NodeRequested)]
    assert requests == ["ps-0-0", "worker-0-0", "worker-1-0", "ps-1-0", "worker-2-0"]
    assert [node.name for node in desired_nodes(world.state, world.spec, world.now)] == requests
    assert [node.extra for node in desired_nodes(world.state, world.spec, world.now)] == [False] * 3 + [True] * 2


def test_a_wanted_node_says_what_it_is_given() -> None:
    resources = Resources(2.0, 1 << 30, {"nvidia.com/gpu": 8.0})
    world = World(platform({"worker": RoleSpec(1, 1, resources=resources, priority=3)}))
    (node,) = desired_nodes(world.state, world.spec, world.now)
    assert (node.resources, node.priority, node.create) == (resources, 3, True)


def test_asking_again_after_a_long_poll_does_not_postpone_the_round() -> None:
    world = World(platform({"worker": RoleSpec(3, 2)}))
    world.join("worker-0-0")
    world.join("worker-1-0")
    for second in range(30):
        assert world.number == 0
        world.now += 1
        for name in ("worker-0-0", "worker-1-0"):
            world.send(_join(name, address=f"{name}:{second + 1}", number=second + 2))
    assert world.number == 1


def test_a_flapping_node_breaks_a_round_once_a_cool_down_at_most() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}))
    world.join_all()
    rounds = world.number
    for launch in range(3):
        world.send(NodeGone(f"worker-1-{launch}", "flaps"))
        world.join("worker-0-0")
        world.wait(10)
        world.join(f"worker-1-{launch + 1}", after_round=0)
        world.stage(launch + 1)
    assert world.number <= rounds + 3


def _lose_one_of_three(start_s: float) -> World:
    """Three nodes that took so long to start; one is lost and the others have joined again."""
    world = World(platform({"worker": RoleSpec(3, 1)}))
    world.wait(start_s, beating=False)
    world.join_all()
    world.send(NodeGone("worker-2-0", "test"))
    world.join("worker-0-0")
    world.join("worker-1-0")
    return world


def test_survivors_wait_for_a_replacement_that_may_come_in_time() -> None:
    world = _lose_one_of_three(start_s=4)
    assert world.number == 1
    world.join("worker-2-1")
    assert members(world) == ["worker-0-0", "worker-1-0", "worker-2-1"]


def test_survivors_do_not_wait_for_a_replacement_if_no_node_has_ever_started_in_that_time() -> None:
    world = _lose_one_of_three(start_s=60)
    assert members(world) == ["worker-0-0", "worker-1-0"]
    assert world.state.round is not None
    assert "not waiting for worker-2-1: the fastest start so far took 60 s" in world.state.round.reason


def test_the_fastest_start_counts_and_a_master_that_takes_over_knows_it() -> None:
    world = World(platform({"worker": RoleSpec(3, 1)}))
    world.wait(4, beating=False)
    world.join("worker-0-0")
    world.wait(56, beating=False)
    world.join_all()
    world.takeover()
    world.send(NodeGone("worker-2-0", "test"))
    world.join("worker-0-0")
    world.join("worker-1-0")
    assert world.number == 1


def test_a_survivor_that_missed_a_round_is_not_waited_for_again_and_comes_back_when_it_grows() -> None:
    world = World(platform({"worker": RoleSpec(3, 1)}))
    world.join_all()
    world.exit("worker-2-0", -9)
    world.join("worker-0-0")
    world.join("worker-1-0")
    assert world.number == 1, "it survives, and is waited for"
    world.wait(11)
    assert members(world) == ["worker-0-0", "worker-1-0"]
    world.exit("worker-1-0", -9)
    world.join("worker-1-0")
    world.join("worker-0-0")
    assert (world.number, members(world)) == (3, ["worker-0-0", "worker-1-0"])
    assert (order := directive(world.state, "worker-2-0")) is not None
    assert (order.action, order.round) == (Action.REJOIN, 1)
    world.join("worker-2-0", after_round=1)
    world.wait(31)
    world.join_all()
    assert (world.number, len(members(world))) == (4, 3)


@pytest.mark.parametrize(("took_s", "pause_s"), [(5, 30), (100, 200)])
def test_a_round_is_broken_to_grow_once_the_newcomer_has_missed_what_the_last_restart_took(
    took_s: float, pause_s: float
) -> None:
    world = _lose_one_of_three(start_s=20)
    formed = world.now
    world.wait(took_s)
    world.stage(1)
    world.join("worker-2-1")
    world.wait(formed + pause_s - world.now - 1)
    assert world.names(NodePhase.RUNNING) == ["worker-0-0", "worker-1-0"]
    world.wait(2)
    assert world.names(NodePhase.REJOINING) == ["worker-0-0", "worker-1-0"]


class TestNodesThatComeByThemselves:
    """Placement `joined`: as under `everstep launch`."""

    SPEC = by_themselves({"worker": RoleSpec(3, 2)})

    def test_none_is_ever_asked_for(self) -> None:
        world = World(self.SPEC)
        world.join("a")
        world.send(NodeGone("a", "test"))
        world.wait(100)
        assert not [record for record in world.records if isinstance(record, NodeRequested)]
        assert desired_nodes(world.state, world.spec, world.now) == []

    def test_a_round_is_formed_at_once_at_the_maximum(self) -> None:
        world = World(self.SPEC)
        for name in ("c", "a", "b"):
            world.join(name)
        assert members(world) == ["c", "a", "b"]

    def test_with_the_minimum_the_join_window_is_waited_out(self) -> None:
        world = World(self.SPEC)
        world.join("a")
        world.join("b")
        world.wait(29)
        assert world.number == 0
        world.wait(1)
        assert members(world) == ["a", "b"]

    def test_a_node_rank_decides_the_order(self) -> None:
        world = World(self.SPEC)
        for name, index in (("a", 2), ("b", 0), ("c", 1)):
            world.send(_join(name, index=index))
        assert members(world) == ["b", "c", "a"]

    def test_nodes_beyond_the_maximum_wait_as_spares(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c", "d"):
            world.join(name)
        world.wait(100)
        assert (world.number, world.names(NodePhase.WAITING)) == (1, ["d"])
        world.send(NodeGone("b", "test"))
        world.join_all()
        assert members(world) == ["a", "c", "d"]

    def test_a_spare_takes_the_seat_of_no_survivor(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c", "d"):
            world.join(name)
        world.send(NodeGone("b", "test"))
        world.join_all()
        world.join("b", anew=True)
        assert (members(world), world.names(NodePhase.WAITING)) == (["a", "c", "d"], ["b"])
        world.exit("d", -9)
        world.join("a")
        world.join("c")
        assert world.state.phase is JobPhase.FORMING
        world.join("d")
        assert (members(world), world.names(NodePhase.WAITING)) == (["a", "c", "d"], ["b"])

    def test_survivors_wait_a_little_for_a_lost_node_and_go_on_smaller(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c"):
            world.join(name)
        world.send(NodeGone("c", "test"))
        world.join("a")
        world.join("b")
        assert world.number == 1
        world.wait(10)
        assert members(world) == ["a", "b"]

    def test_a_node_that_comes_back_under_its_old_name_is_a_new_incarnation(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c"):
            world.join(name)
        world.send(NodeGone("c", "test"))
        world.join("a")
        world.join("b")
        world.join("c", anew=True)
        assert members(world) == ["a", "b", "c"]
        assert world.state.nodes["c"].launch == 1
        order = directive(world.state, "c", life=1)
        assert order is not None
        assert order.action is Action.CONTINUE

    def test_an_agent_started_anew_before_its_loss_was_seen_does_not_get_the_old_seat(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c"):
            world.join(name)
        world.join("c", anew=True)
        assert world.state.phase is JobPhase.FORMING
        world.join_all()
        assert (world.number, members(world)) == (2, ["a", "b", "c"])

    def test_a_restarted_member_that_is_given_up_is_lost_at_once_and_told_so_when_it_asks_again(self) -> None:
        world = World(by_themselves({"worker": RoleSpec(3, 2, restart_policy=RestartPolicy.ON_FAILURE)}))
        for name in ("a", "b", "c"):
            world.join(name)
        assert world.join("c", anew=True), "refused, it would change nothing"
        assert (world.names(NodePhase.LOST), world.names(NodePhase.REJOINING)) == (["c"], ["a", "b"])
        assert not world.join("c")
        world.join("a")
        world.join("b")
        world.wait(10)
        assert members(world) == ["a", "b"]
        world.check_history()

    def test_who_stands_in_takes_in_a_node_that_the_master_had_asked_a_platform_for(self) -> None:
        spec = platform({"worker": RoleSpec(2, 2, restart_policy=RestartPolicy.ON_FAILURE)})
        world = World(spec)
        world.spec = without_platform(spec)
        world.takeover()
        for name in ("worker-0-0", "worker-1-0"):
            assert world.join(name, anew=True)
        assert members(world) == ["worker-0-0", "worker-1-0"]
        assert not [record for record in world.records if isinstance(record, NodeLost)]
        world.check_history()

    def test_a_node_that_was_cut_off_is_told_to_join_again_not_to_leave(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c"):
            world.join(name)
        for _ in range(5):
            world.now += 10
            world.beat("a")
            world.beat("b")
            world.send(Tick())
        assert world.state.nodes["c"].phase is NodePhase.LOST
        config = directive(world.state, "c")
        assert config is not None
        assert (config.action, config.round) == (Action.REJOIN, 1)

    def test_scaled_down_those_beyond_the_size_wait_as_spares_until_it_is_scaled_up(self) -> None:
        world = World(self.SPEC)
        for name in ("a", "b", "c"):
            world.join(name)
        world.now += 1
        world.send(ScaleRequested("worker", 2))
        assert world.state.phase is JobPhase.FORMING
        world.join_all()
        assert (members(world), world.names(NodePhase.WAITING)) == (["a", "b"], ["c"])
        world.now += 1
        world.send(ScaleRequested("worker", 3))
        world.join_all()
        assert members(world) == ["a", "b", "c"]

    def test_a_node_that_joins_and_goes_again_does_not_put_the_first_round_off_for_ever(self) -> None:
        world = World(by_themselves({"worker": RoleSpec(4, 2)}))
        world.join("a")
        world.join("b")
        began = world.now
        while world.number == 0 and world.now < began + world.spec.patience.join_timeout_s:
            world.join("c", anew=True)
            world.send(NodeGone("c", "crashes"))
            world.wait(20)
        assert members(world) == ["a", "b"]

    @pytest.mark.parametrize("name", ["../a", "", "a b", "x" * 200])
    def test_a_name_that_is_no_name_is_refused(self, name: str) -> None:
        world = World(self.SPEC)
        assert not world.send(_join(name))
        assert not world.state.nodes

    def test_an_unknown_role_is_refused(self) -> None:
        world = World(JobSpec("j", {"chief": RoleSpec(1, 1)}, placement=self.SPEC.placement))
        assert not world.send(_join("a"))
