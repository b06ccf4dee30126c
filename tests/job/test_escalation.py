"""Process, node, job: what follows when restarts in place do not end an error."""

import random

import pytest

from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Decision, JobResult, Reason
from everstep.runtime.job.records import FaultJudged, NodeRequested
from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec
from tests.job.world import World, by_themselves, platform


class Cluster(World):
    """Nodes that a cluster places: each new one on the machine that `machines` names next."""

    def __init__(self, spec: JobSpec, machines: str) -> None:
        self.machines = iter(machines)
        super().__init__(spec)

    def join(self, name: str, after_round: int | None = None, anew: bool = False) -> bool:
        if name not in self.host_of:
            self.host_of[name] = next(self.machines)
        return super().join(name, after_round, anew)


def cluster(machines: str, nodes: int = 2, patience: Patience = Patience()) -> Cluster:  # noqa: B008 (frozen)
    world = Cluster(platform({"worker": RoleSpec(nodes, 1)}, hosts="", patience=patience), machines)
    world.join_all()
    return world


def decisions(world: World) -> list[tuple[str, Decision]]:
    return [(r.node, r.decision) for r in world.records if isinstance(r, FaultJudged) if r.reason is Reason.USER_ERROR]


def end_of(world: World) -> str:
    assert world.state.ended is not None
    assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.FAILED, 1)
    return world.state.ended.reason


def fail(world: World, replica: str, iteration: int = 3, error: str = "ValueError: bad") -> None:
    """The newest node of the replica fails, and all join again."""
    (name,) = [name for name in world.names(NodePhase.RUNNING) if name.startswith(f"{replica}-")]
    world.exit(name, 1, iteration, error)
    world.join_all()


def test_an_error_that_comes_twice_on_one_machine_moves_its_node_and_the_training_goes_on() -> None:
    world = cluster("abc")
    for _ in range(2):
        fail(world, "worker-1")
    assert decisions(world) == [("worker-1-0", Decision.RESTART), ("worker-1-0", Decision.RELAUNCH_ELSEWHERE)]
    assert world.state.ended is None
    assert world.names(NodePhase.RUNNING) == ["worker-0-0", "worker-1-1"]
    assert world.state.relaunches == {("worker", 1): 1}


def test_the_same_error_on_the_new_machine_is_the_scripts_and_fails_the_job_at_once() -> None:
    world = cluster("abc")
    for _ in range(3):
        fail(world, "worker-1")
    assert len(decisions(world)) == 3
    assert "occurred again on c, as on b before, so it is the script's own" in end_of(world)
    assert world.state.ended
    assert world.state.ended.error == "ValueError: bad"


def test_the_same_error_on_two_machines_moves_no_node() -> None:
    world = cluster("ab")
    fail(world, "worker-0")
    fail(world, "worker-1")
    assert "on a and b, so it is the script's own" in end_of(world)
    assert not world.state.relaunches


def test_errors_of_all_kinds_move_the_node_after_max_restarts_and_fail_the_job_after_max_relaunches() -> None:
    world = cluster("abcdef", patience=Patience(max_restarts=1, max_relaunches=2))
    for number in range(1, 7):
        assert world.state.ended is None, number
        fail(world, "worker-1", number, f"RuntimeError: {number}")
    moves = [node for node, decision in decisions(world) if decision is Decision.RELAUNCH_ELSEWHERE]
    assert moves == ["worker-1-0", "worker-1-1"]
    assert "worker-1 was replaced 2 times, as often as allowed" in end_of(world)


def test_an_error_that_moved_a_node_counts_as_the_scripts_at_another_iteration_too_once_restarts_are_used_up() -> None:
    world = cluster("abcd", patience=Patience(max_restarts=1))
    for number in range(1, 5):
        fail(world, "worker-1", number)
    assert "the last one on c, and on b before, so it is the script's own" in end_of(world)


def test_a_replacement_that_found_no_other_machine_says_so() -> None:
    world = cluster("abb")
    for _ in range(3):
        fail(world, "worker-1")
    assert "occurred again after worker-1-0 was replaced" in end_of(world)


def test_the_node_that_is_blamed_most_moves() -> None:
    world = cluster("abc", patience=Patience(max_restarts=2))
    for number, replica in enumerate(("worker-1", "worker-1", "worker-0"), 1):
        fail(world, replica, number, f"RuntimeError: {number}")
    assert world.names(NodePhase.RUNNING) == ["worker-0-0", "worker-1-1"]


@pytest.mark.parametrize("spec", [platform({"worker": RoleSpec(2, 1)}), by_themselves({"worker": RoleSpec(2, 1)})])
def test_where_there_is_no_other_machine_the_job_fails_without_a_move(spec: JobSpec) -> None:
    world = World(spec)
    for name in ("n0", "n1") if spec.placement.value != "platform" else ():
        world.join(name)
    world.join_all()
    name = world.names(NodePhase.RUNNING)[0]
    for _ in range(2):
        world.exit(name, 1)
        world.join_all()
    end_record = end_of(world)
    assert ("all nodes are on one machine, so no other was tried" in end_record) == (spec.placement.value == "platform")


def test_no_relaunches_means_no_move() -> None:
    world = cluster("ab", patience=Patience(max_relaunches=0))
    for _ in range(2):
        fail(world, "worker-1")
    assert "as often as allowed" in end_of(world)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_fails_where_each_move_follows_from_errors_and_the_job_ends(seed: int) -> None:
    """Random errors on random nodes, between kills, over takeovers: bounded moves, none for a kill, always an end."""
    chance = random.Random(seed)
    machines = "".join(chance.choice("abcdef") for _ in range(200))
    world = cluster(machines, 3, Patience(max_restarts=2, max_relaunches=2, no_progress=0))
    for number in range(1, 200):
        if world.state.ended:
            break
        names = world.names(NodePhase.RUNNING)
        if chance.random() < 0.3:
            world.exit(chance.choice(names), -9, number)
        else:
            world.exit(chance.choice(names), 1, chance.choice((1, number)), f"E: {chance.randrange(4)}")
        if chance.random() < 0.2:
            world.takeover(is_batch_lost=chance.random() < 0.5)
        world.join_all()
    assert world.state.ended is not None
    moves = [r for r in world.records if isinstance(r, FaultJudged) and r.decision is Decision.RELAUNCH_ELSEWHERE]
    assert all(move.reason is Reason.USER_ERROR for move in moves)
    assert max(world.state.relaunches.values(), default=0) <= 2
    replaced_names = [r.replaces for r in world.records if isinstance(r, NodeRequested) and r.replaces]
    assert set(replaced_names) <= {move.node for move in moves}
    world.check_history()


def test_an_echo_that_dies_before_its_cause_is_not_blamed() -> None:
    """The failing rank still prints its traceback when the others' collectives have broken."""
    world = cluster("abc")
    closed = "RuntimeError: Connection closed by peer [127.0.0.1]:22949"
    for _ in range(2):
        world.exit("worker-1-0", 1, 3, closed)
        world.exit("worker-0-0", 1, 3, "ValueError: bad")
        world.join_all()
    assert [fault.node for fault in world.state.moved_for] == ["worker-0-0"]
    assert decisions(world)[-1] == ("worker-0-0", Decision.RELAUNCH_ELSEWHERE)
