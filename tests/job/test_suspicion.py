"""A member that answers nobody is left out of the next round at once, and is lost only after the whole silence."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job.assignments import neighbours
from everstep.runtime.job.events import NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import NodeLost, NodeRequested, NodeSuspected, RoundBroken
from everstep.runtime.job.rounds import WORD_S
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.job.suspicion import REACH_S, VOTE_S, choose_suspects
from everstep.runtime.protocol.rounds import Member, Round
from tests.job.world import World, by_themselves, platform

A, B, C = "worker-0-0", "worker-1-0", "worker-2-0"
ASKED_S = 1.5
SLOW_START_S = 15.0
"""As a pod takes: no replacement could come within the replacement wait."""


def training(least: int = 1, nodes: int = 3, start_s: float = SLOW_START_S) -> World:
    """Trains since long; nobody was heard of in the last seconds."""
    world = World(platform({"worker": RoleSpec(nodes, least)}))
    world.now += start_s
    world.join_all()
    world.stage(1)
    world.wait(100.0)
    world.stage(7)
    world.now += 2.0
    return world


def accuse(world: World, accuser: str, *silent: str, asked_s: float = ASKED_S) -> None:
    world.beat(accuser, 7, 2.5, silent=silent, silent_s=asked_s)


def suspected_nodes(world: World) -> list[str]:
    return [record.node for record in world.records if isinstance(record, NodeSuspected)]


def pass_vote(world: World) -> None:
    world.wait(VOTE_S, beating=False)


@pytest.mark.parametrize("spec", [platform, by_themselves])
def test_a_silent_member_is_done_without_at_once_and_stays_in_the_job(spec: object) -> None:
    world = World(spec({"worker": RoleSpec(2, 1)}))  # type: ignore[operator]
    first, second = (A, B) if world.state.nodes else ("n0", "n1")
    world.now += SLOW_START_S
    world.join(first)
    world.join(second)
    world.wait(100.0)
    world.now += 2.0
    accuse(world, first, second)
    assert suspected_nodes(world) == [second]
    world.join(first)
    assert (world.state.phase, world.number) == (JobPhase.RUNNING, 2)
    assert world.names(NodePhase.RUNNING) == [first]
    assert world.names(NodePhase.SUSPECTED) == [second]
    assert not [record for record in world.records if isinstance(record, NodeLost)]
    assert len([record for record in world.records if isinstance(record, NodeRequested)]) in (0, 2)
    world.check_history()


def test_a_suspected_node_that_comes_back_is_in_the_next_round() -> None:
    world = training(nodes=2)
    accuse(world, A, B)
    world.join(A)
    world.join(B)
    assert world.names(NodePhase.WAITING) == [B]
    world.wait(world.spec.patience.cooldown_s)
    world.join_all()
    assert world.names(NodePhase.RUNNING) == [A, B]
    assert world.number == 3
    world.check_history()


def test_a_suspected_node_that_stays_silent_is_lost_and_replaced_after_the_whole_silence() -> None:
    world = training(nodes=2)
    accuse(world, A, B)
    world.join(A)
    silent_s = 2.0

    def losses() -> list[str]:
        return [record.node for record in world.records if isinstance(record, NodeLost)]

    while silent_s < world.spec.patience.silence_s:
        assert losses() == []
        world.now, silent_s = world.now + 1.0, silent_s + 1.0
        world.beat(A, 8)
    assert losses() == [B]
    assert world.names(NodePhase.REQUESTED) == ["worker-1-1"]


def test_where_nodes_start_fast_the_round_waits_a_moment_for_the_end_of_a_silent_node_and_then_for_another() -> None:
    world = training(nodes=2, start_s=1.0)
    accuse(world, A, B)
    world.join(A)
    assert world.state.phase is JobPhase.FORMING
    world.now += WORD_S / 2
    world.send(NodeGone(B, "killed"))
    world.wait(WORD_S)
    assert world.state.phase is JobPhase.FORMING, "the replacement is on its way"
    world.join("worker-1-1")
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, [A, "worker-1-1"])
    world.check_history()


def test_where_nodes_start_fast_a_silent_node_that_is_back_in_a_moment_is_in_the_next_round() -> None:
    world = training(nodes=2, start_s=1.0)
    accuse(world, A, B)
    world.join(A)
    world.now += WORD_S / 2
    world.join(B)
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, [A, B])


def test_where_nodes_start_fast_a_silent_node_delays_one_round_by_a_moment_and_no_later_one() -> None:
    world = training(nodes=3, start_s=1.0)
    accuse(world, A, C)
    accuse(world, B, C)
    for node in (A, B):
        world.join(node)
    world.wait(WORD_S)
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, [A, B])
    world.exit(A, -9)
    for node in (A, B):
        world.join(node)
    assert (world.number, world.names(NodePhase.RUNNING)) == (3, [A, B])


def test_who_was_heard_of_since_it_was_asked_is_not_suspected() -> None:
    world = training(nodes=2)
    world.beat(B, 7)
    world.now += 1.0
    accuse(world, A, B)
    pass_vote(world)
    assert suspected_nodes(world) == []
    assert world.number == 1


def taken_over(nodes: int = 2) -> World:
    """Its master is gone with some machine, and the next one has just claimed the job."""
    world = training(nodes=nodes)
    world.now += 10.0
    world.takeover()
    world.now += 0.3
    return world


def test_a_new_master_suspects_a_dead_node_as_soon_as_a_survivor_names_it() -> None:
    world = taken_over()
    accuse(world, A, B)
    assert suspected_nodes(world) == [B]
    world.join(A)
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, [A])
    world.check_history()


def test_a_new_master_hears_of_a_dead_node_before_all_survivors_have_come() -> None:
    world = taken_over(nodes=3)
    accuse(world, A, C)
    assert suspected_nodes(world) == []
    pass_vote(world)
    assert suspected_nodes(world) == [C], "B is on its way, and nobody says that it is silent"


def test_who_has_reached_the_new_master_since_it_was_asked_is_not_suspected() -> None:
    world = taken_over()
    world.beat(B, 7)
    accuse(world, A, B)
    pass_vote(world)
    assert suspected_nodes(world) == []


def test_who_comes_first_to_a_new_master_and_accuses_all_waits_for_the_others() -> None:
    world = taken_over(nodes=3)
    accuse(world, A, B, C)
    pass_vote(world)
    assert suspected_nodes(world) == []
    accuse(world, B, A)
    pass_vote(world)
    assert suspected_nodes(world) == [], "C may still say which of them it is"
    accuse(world, C, A)
    assert suspected_nodes(world) == [A]


def test_who_accuses_all_is_believed_when_nobody_has_come_in_time() -> None:
    world = taken_over(nodes=3)
    accuse(world, A, B, C)
    world.wait(REACH_S, beating=False)
    accuse(world, A, B, C)
    assert sorted(suspected_nodes(world)) == [B, C]


def test_what_was_asked_while_the_master_itself_did_not_run_counts_for_nothing() -> None:
    world = training()
    world.now += world.spec.patience.silence_s
    accuse(world, A, B)
    pass_vote(world)
    assert suspected_nodes(world) == []


@given(st.integers(3, 6), st.data())
def test_in_no_order_of_arrival_a_new_master_suspects_a_node_that_lives(nodes: int, data: st.DataObject) -> None:
    world = taken_over(nodes)
    names = sorted(world.state.nodes)
    dead = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=(nodes - 1) // 2), "dead")
    living = [name for name in names if name not in dead]
    cut_off = data.draw(st.sampled_from(["", *living]) if len(living) - 1 > len(dead) + 1 else st.just(""), "cut off")
    silent_to_all = {*dead, cut_off} - {""}
    for name in data.draw(st.permutations(living), "order of arrival"):
        others = names if name == cut_off else silent_to_all
        accuse(world, name, *sorted({*others} - {name}))
        world.wait(data.draw(st.floats(0.01, (REACH_S - 0.5) / nodes), "pause"), beating=False)
        assert set(suspected_nodes(world)) <= silent_to_all
    world.wait(REACH_S, beating=False)
    assert set(suspected_nodes(world)) == silent_to_all


def test_an_accusation_that_is_taken_back_counts_no_longer() -> None:
    world = training()
    accuse(world, A, B)
    world.beat(A, 7)
    pass_vote(world)
    assert suspected_nodes(world) == []


def test_a_round_that_could_not_go_on_without_the_silent_node_is_not_broken() -> None:
    world = training(least=2, nodes=2)
    accuse(world, A, B)
    pass_vote(world)
    assert (world.state.phase, world.number) == (JobPhase.RUNNING, 1)
    assert suspected_nodes(world) == []


def test_a_node_that_lost_its_own_network_accuses_all_and_is_left_out_itself() -> None:
    world = training()
    accuse(world, A, B, C)
    assert suspected_nodes(world) == [], "the others may have something to say"
    accuse(world, B, A)
    accuse(world, C, A)
    assert suspected_nodes(world) == [A]


def test_of_two_that_accuse_each_other_one_is_left_out() -> None:
    world = training(nodes=2)
    world.beat(B, 7)
    accuse(world, A, B)
    accuse(world, B, A)
    assert len(suspected_nodes(world)) == 1


def test_all_silent_nodes_go_in_one_round() -> None:
    world = training()
    accuse(world, A, B, C)
    pass_vote(world)
    assert sorted(suspected_nodes(world)) == [B, C]
    world.join(A)
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, [A])


def test_a_round_that_is_formed_does_not_wait_for_a_silent_node() -> None:
    world = training(nodes=2)
    world.exit(A, -9)
    assert world.state.phase is JobPhase.FORMING
    world.join(A)
    assert world.state.phase is JobPhase.FORMING
    accuse(world, A, B, asked_s=0.0)
    pass_vote(world)
    assert (world.number, world.names(NodePhase.RUNNING)) == (2, [A])


def test_errors_of_the_others_are_not_charged() -> None:
    world = training(nodes=2)
    world.exit(A, 1)
    world.join(A)
    accuse(world, A, B, asked_s=0.0)
    pass_vote(world)
    assert suspected_nodes(world) == [B]
    assert world.state.blamed == {}
    assert world.state.restarts == {}


def test_nobody_is_suspected_by_a_round_that_is_over_or_by_strangers() -> None:
    world = training()
    world.beat(A, 7, 2.5, silent=("nobody", A), silent_s=0.0)
    pass_vote(world)
    assert [record for record in world.records if isinstance(record, RoundBroken)] == []


def test_a_round_that_a_suspicion_ends_says_who_asked() -> None:
    world = training(nodes=2)
    accuse(world, A, B)
    (broken,) = (record for record in world.records if isinstance(record, RoundBroken))
    assert (broken.reason, broken.node) == (Reason.SUSPECTED, B)
    assert A in broken.detail


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("a", "b")], ["b"]),
        ([("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")], ["a"]),
        ([("a", "d"), ("b", "d"), ("c", "e")], ["d", "e"]),
        ([("a", "b"), ("b", "a"), ("c", "a")], ["a"]),
        ([], []),
    ],
)
def test_who_is_accused_by_most_goes_first_and_takes_its_accusations_along(
    pairs: Sequence[tuple[str, str]], expected: list[str]
) -> None:
    assert sorted(choose_suspects(pairs, {})) == expected


@pytest.mark.parametrize("size", [2, 3, 7, 300])
def test_each_member_is_asked_by_others_even_if_a_rack_of_neighbours_fails(size: int) -> None:
    members = tuple(Member(f"n{number}", "h", f"n{number}:1", 1) for number in range(size))
    round_ = Round(1, {"worker": members}, "", 0, None, "")
    questioners = {rank: {neighbour.node for neighbour in neighbours(round_, rank)} for rank in range(size)}
    rack = {f"n{number}" for number in range(min(size - 1, 100))}
    alive = [rank for rank in range(size) if f"n{rank}" not in rack]
    assert rack <= set().union(*(questioners[rank] for rank in alive))
    assert all(f"n{rank}" not in names and len(names) <= 8 for rank, names in questioners.items())
