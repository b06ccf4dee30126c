"""Before a restart that hardware may be to blame for, the survivors test themselves."""

import pytest

from everstep.runtime.job.assignments import directive
from everstep.runtime.job.events import NodeChecked, NodeGone
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.records import CheckOver, CheckRequested, FaultJudged, NodeTested, WorkerFaulted
from everstep.runtime.job.spec import Hang, HangPolicy, Patience, RoleSpec
from everstep.runtime.protocol.messages import Action, SelfTest
from tests.job.world import World, platform


def training(nodes: int = 3, check_s: float = 3.0) -> World:
    spec = platform(
        {"worker": RoleSpec(nodes, 1)}, patience=Patience(check_s=check_s), hang=Hang(HangPolicy.RESTART, 60.0)
    )
    world = World(spec)
    world.join_all()
    return world


def rejoin(world: World) -> None:
    for name in world.names(NodePhase.REJOINING):
        world.join(name)


def count_of_checks(world: World) -> int:
    return sum(isinstance(record, CheckRequested) for record in world.records)


def test_after_an_error_every_survivor_is_told_to_test_itself_before_the_next_round() -> None:
    world = training()
    world.exit("worker-1-0", 1)
    rejoin(world)
    assert world.number == 1
    directives = [directive(world.state, name) for name in world.names(NodePhase.CHECKING)]
    assert [(order and order.action, order and order.round) for order in directives] == [(Action.CHECK, 1)] * 3
    for name in world.names(NodePhase.CHECKING):
        world.test(name)
    assert world.number == 2
    assert world.state.nodes["worker-1-0"].action is Action.CONTINUE


def test_a_hang_and_a_loss_that_is_no_number_ask_for_a_test_too() -> None:
    world = training(2)
    world.beat_all(3, still_s=60.0)
    for name in ("worker-0-0", "worker-1-0"):
        world.dump(name)
    rejoin(world)
    assert count_of_checks(world) == 1
    world.join_all()
    world.exit("worker-0-0", 76)
    rejoin(world)
    assert count_of_checks(world) == 2


@pytest.mark.parametrize("code", [-9, 143, 247, 201])
def test_a_kill_a_preemption_or_known_hardware_asks_for_none(code: int) -> None:
    world = training()
    world.exit("worker-1-0", code)
    rejoin(world)
    assert count_of_checks(world) == 0


def test_an_error_that_echoes_a_kill_asks_for_none_although_it_is_reported_first() -> None:
    world = training()
    world.exit("worker-0-0", 1, error="RuntimeError: Connection closed by peer")
    world.exit("worker-1-0", -9)
    rejoin(world)
    assert (count_of_checks(world), world.number) == (0, 2)


def test_a_lost_node_asks_for_none() -> None:
    world = training()
    world.send(NodeGone("worker-1-0", "killed"))
    world.join_all()
    assert count_of_checks(world) == 0


def test_a_node_that_fails_its_test_is_replaced_elsewhere_and_the_error_is_charged_to_nobody() -> None:
    world = training()
    world.problems = {"local-1": "cuda:3: matmul is wrong"}
    for _ in range(2):
        world.exit("worker-0-0", 1)
        world.join_all()
    judged = [record for record in world.records if isinstance(record, FaultJudged)]
    assert [(judgement.node, judgement.reason, judgement.decision) for judgement in judged] == [
        ("worker-1-0", Reason.HARDWARE, Decision.EXCLUDE), ("worker-0-0", Reason.USER_ERROR, Decision.RESTART),
    ]  # fmt: skip
    assert "local-1: cuda:3: matmul is wrong" in judged[0].detail
    assert world.state.avoided == {"local-1"}
    assert world.state.ended is None


def test_nodes_that_do_not_answer_are_taken_as_they_are_after_some_seconds() -> None:
    world = training(check_s=3.0)
    world.exit("worker-1-0", 1)
    rejoin(world)
    world.test("worker-0-0")
    world.wait(2.9)
    assert world.number == 1
    world.wait(0.1)
    assert world.number == 2
    (over,) = [record for record in world.records if isinstance(record, CheckOver)]
    assert over.nodes == ("worker-1-0", "worker-2-0")


def test_another_master_goes_on_with_the_tests_and_gives_them_their_time_again() -> None:
    world = training(check_s=3.0)
    world.exit("worker-1-0", 1)
    rejoin(world)
    world.now += 2.0
    world.takeover()
    assert world.names(NodePhase.CHECKING) == ["worker-0-0", "worker-1-0", "worker-2-0"]
    world.wait(2.9)
    assert world.number == 1
    world.join_all()
    assert (world.number, count_of_checks(world)) == (2, 1)
    world.check_history()


def test_a_test_of_an_earlier_round_a_second_one_or_one_that_nobody_asked_for_changes_nothing() -> None:
    world = training()
    world.send(NodeChecked(SelfTest("worker-0-0", 1, 0.1, "cpu: broken")))
    world.exit("worker-1-0", 1)
    rejoin(world)
    world.send(NodeChecked(SelfTest("worker-0-0", 7, 0.1, "cpu: broken")))
    for _ in range(2):
        world.test("worker-0-0")
    assert sum(isinstance(record, NodeTested) for record in world.records) == 1
    assert not world.state.avoided


def test_a_node_that_is_lost_while_it_tests_itself_holds_nobody_up() -> None:
    world = training()
    world.exit("worker-1-0", 1)
    rejoin(world)
    world.send(NodeGone("worker-2-0", "its machine lost power"))
    for name in world.names(NodePhase.CHECKING):
        world.test(name)
    world.join_all()
    assert world.number == 2


def test_without_a_time_for_tests_there_are_none() -> None:
    world = training(check_s=0.0)
    world.exit("worker-1-0", 1)
    rejoin(world)
    assert (count_of_checks(world), world.number) == (0, 2)
    assert sum(isinstance(record, WorkerFaulted) for record in world.records) == 1
