"""Connections between ranks fail: the round ends, and whoever is told later to be the cause is judged as ever."""

from collections.abc import Callable
from itertools import permutations

import pytest

from everstep.runtime.job.events import NodeFinishedRound, NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Decision, JobResult, Reason
from everstep.runtime.job.records import CheckRequested, FaultJudged, RoundBroken, WorkerFaulted
from everstep.runtime.job.spec import Patience, RoleSpec
from everstep.runtime.protocol.messages import Finished
from tests.job.world import World, by_themselves, platform

A, B, C = "worker-0-0", "worker-1-0", "worker-2-0"


def training(**fields: object) -> World:
    world = World(platform({"worker": RoleSpec(3, 2)}, **fields))
    world.join_all()
    return world


def breaks(world: World) -> list[Reason]:
    return [record.reason for record in world.records if isinstance(record, RoundBroken)]


def judgements(world: World) -> list[tuple[str, Reason, Decision]]:
    judged = [record for record in world.records if isinstance(record, FaultJudged)]
    return [(record.node, record.reason, record.decision) for record in judged]


def count_of_checks(world: World) -> int:
    return sum(isinstance(record, CheckRequested) for record in world.records)


def test_the_round_ends_with_the_reason_and_all_meet_in_the_next_one_which_counts_as_no_restart() -> None:
    world = training()
    world.disconnect(B, iteration=7)
    (broken,) = [record for record in world.records if isinstance(record, RoundBroken)]
    assert (broken.reason, broken.node, broken.iteration) == (Reason.DISCONNECTED, "", 7)
    assert broken.detail == (
        f"rank 0 on {B} lost its connection to another rank: RuntimeError: Connection closed by peer [10.0.0.2]:4242"
    )
    assert world.names(NodePhase.REJOINING) == [A, B, C]
    world.join_all()
    assert (world.number, world.names(NodePhase.RUNNING), count_of_checks(world)) == (2, [A, B, C], 1)
    assert (world.state.restarts, world.state.blamed, judgements(world)) == ({}, {}, [])


def test_a_copy_another_ranks_word_and_one_of_an_earlier_round_change_nothing() -> None:
    world = training()
    world.disconnect(A)
    before = world.state
    for name in (A, B, C):
        assert world.disconnect(name)
        assert world.state is before
    world.join_all()
    before = world.state
    for name in (A, B, C):
        assert world.disconnect(name, round_=1)
        assert world.disconnect(name, round_=3)
        assert world.state is before
    assert not world.disconnect("worker-7-0")
    assert breaks(world) == [Reason.DISCONNECTED]


def test_what_comes_when_the_job_has_ended_changes_nothing() -> None:
    world = training(patience=Patience(no_progress=1))
    world.disconnect(A, iteration=0)
    world.join_all()
    assert world.state.ended is not None
    before = world.state
    assert world.disconnect(A)
    assert world.state is before


def kill(world: World) -> None:
    world.exit(C, -9)


def fail(world: World) -> None:
    world.exit(C, 1)


def find_hardware(world: World) -> None:
    world.exit(C, 201)


def lose(world: World) -> None:
    world.send(NodeGone(C, "its machine lost power"))


CAUSES: dict[Callable[[World], None], tuple[Reason, Decision]] = {
    kill: (Reason.KILLED, Decision.RESTART),
    fail: (Reason.USER_ERROR, Decision.RESTART),
    find_hardware: (Reason.HARDWARE, Decision.EXCLUDE),
    lose: (Reason.NODE_LOST, Decision.RELAUNCH_ELSEWHERE),
}


@pytest.mark.parametrize("cause", list(CAUSES))
@pytest.mark.parametrize("order", list(permutations("ABX")), ids="".join)
@pytest.mark.parametrize("takes_over", [False, True])
def test_the_true_cause_is_judged_in_whatever_order_it_and_the_others_words_come(
    cause: Callable[[World], None], order: tuple[str, ...], takes_over: bool
) -> None:
    world = training()
    for what in order:
        if what == "X":
            cause(world)
        else:
            world.disconnect({"A": A, "B": B}[what])
        if takes_over:
            world.takeover()
    world.join_all()
    reason, decision = CAUSES[cause]
    assert judgements(world) == [(C, reason, decision)]
    assert breaks(world) == [reason if order[0] == "X" else Reason.DISCONNECTED]
    assert (world.number, sum(world.state.members.values())) == (2, 3)
    assert count_of_checks(world) == (reason is Reason.USER_ERROR), "a kill or a loss explains it"
    assert all(record.round == 1 for record in world.records if isinstance(record, FaultJudged | WorkerFaulted))
    world.check_history()


def test_the_cause_that_nobody_told_is_found_when_its_node_stays_silent() -> None:
    world = training()
    world.disconnect(A)
    for name in (A, B):
        world.join(name)
    for _ in range(20):
        world.now += 5
        for name in (A, B):
            world.beat(name)
    assert (C, Reason.NO_HEARTBEAT, Decision.RELAUNCH_ELSEWHERE) in judgements(world)


def test_an_error_after_failed_connections_counts_as_often_as_one_before() -> None:
    world = training()
    for _ in range(2):
        world.disconnect(A)
        world.exit(C, 1, error="ValueError: bad")
        world.join_all()
    assert world.state.ended is not None
    assert "twice at iteration 3 with the same error" in world.state.ended.reason
    assert world.state.ended.error == "ValueError: bad"


def test_a_network_that_never_works_ends_the_job_and_its_error_is_told() -> None:
    world = training(patience=Patience(no_progress=4))
    for _ in range(4):
        assert world.state.ended is None
        world.disconnect(B, iteration=0)
        world.join_all()
    assert world.state.ended is not None
    assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.FAILED, 1)
    assert world.state.ended.reason == (
        f"4 rounds in a row ended without a new iteration; the last one: rank 0 on {B} lost its connection to another "
        "rank: RuntimeError: Connection closed by peer [10.0.0.2]:4242"
    )
    assert count_of_checks(world) == 3, "a job that ends needs no test"


def test_ranks_that_part_at_the_same_iteration_again_and_again_end_the_job() -> None:
    world = training(patience=Patience(no_progress=3))
    world.stage(5)
    for _ in range(4):
        assert world.state.ended is None
        world.disconnect(A, iteration=7)
        world.join_all()
    assert world.state.ended is not None
    assert world.state.ended.reason.startswith("3 rounds in a row ended without a new iteration")


def test_a_rank_whose_node_has_finished_is_told() -> None:
    world = training()
    world.send(NodeFinishedRound(Finished(B, world.number)))
    world.disconnect(A)
    assert f"rank 0 on {A} lost its connection to another rank (nodes that had finished: 1)" in world.state.reason


def test_a_network_that_is_interrupted_again_and_again_ends_no_job_that_goes_on_meanwhile() -> None:
    world = training(patience=Patience(no_progress=2, max_restarts=0))
    for iteration in range(1, 30):
        world.stage(iteration)
        world.disconnect(A, iteration)
        world.join_all()
        assert world.state.ended is None
    assert set(breaks(world)) == {Reason.DISCONNECTED}


def test_a_node_whose_link_is_broken_is_found_by_its_test_and_replaced() -> None:
    world = training()
    world.problems = {"local-1": "cuda:3: all-reduce is wrong"}
    world.disconnect(A)
    world.join_all()
    assert judgements(world) == [(B, Reason.HARDWARE, Decision.EXCLUDE)]
    assert world.state.ended is None


def test_where_nodes_come_by_themselves_they_meet_again() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 2)}))
    for name in ("n0", "n1"):
        world.join(name)
    world.disconnect("n1")
    world.join_all()
    assert (world.number, judgements(world)) == (2, [])
