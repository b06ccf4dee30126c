"""Policies and limits of faults: memory, restart policies and scopes, limits, how roles end, what is cleaned up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from everstep.runtime.job.events import NodeFinishedRound, NodeGone, ScaleRequested, StopRequested, WorkerExited
from everstep.runtime.job.fault_policy import more_memory, reason_of
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Decision, JobResult, Reason
from everstep.runtime.job.records import FaultJudged, NodeRequested, RoundBroken
from everstep.runtime.job.replicas import desired_nodes
from everstep.runtime.job.spec import (
    GIB,
    CleanPodPolicy,
    EndingPolicy,
    FaultRule,
    Hang,
    HangPolicy,
    NodeEvent,
    Oom,
    Patience,
    Placement,
    Resources,
    RestartPolicy,
    RestartScope,
    RoleSpec,
    StragglerPolicy,
)
from everstep.runtime.protocol.messages import Finished, WorkerExit
from tests.job.world import World, by_themselves, platform


def job(nodes: int = 2, *, role: Mapping[str, object] | None = None, **fields: object) -> World:
    """A job of which all nodes train."""
    world = World(platform({"worker": RoleSpec(nodes, 1, **(role or {}))}, **fields))  # type: ignore[arg-type]
    world.join_all()
    return world


def judgements(world: World) -> list[tuple[Reason, Decision]]:
    return [(record.reason, record.decision) for record in world.records if isinstance(record, FaultJudged)]


def last_request(world: World) -> NodeRequested:
    return [record for record in world.records if isinstance(record, NodeRequested)][-1]


def test_a_job_lasts_as_long_as_its_time_limit_from_its_first_round_whatever_happens_meanwhile() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, time_limit_s=60.0))
    world.now += 500
    world.join_all()
    began = world.now
    world.exit("worker-1-0", -9)
    world.join_all()
    world.takeover()
    world.wait(began + 59 - world.now)
    assert world.state.ended is None
    world.wait(1)
    assert world.state.ended is not None
    assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.FAILED, 1)
    assert "it lasted 60 s, its timeLimit" in world.state.ended.reason


MEMORY = {"resources": Resources(memory_bytes=4 * GIB)}


class TestMemory:
    """A node that ran out of memory gets more."""

    @pytest.mark.parametrize(
        ("before", "after"), [(1, 2), (4, 8), (8, 16), (16, 24), (40, 48), (60, 64), (64, 64)]
    )  # fmt: skip
    def test_twice_as_much_at_most_8_gib_more_and_64_in_all(self, before: int, after: int) -> None:
        assert more_memory(before * GIB, Oom()) == after * GIB

    @pytest.mark.parametrize(("code", "oom"), [(247, False), (-9, True), (137, True), (1, True)])
    def test_the_cgroups_own_count_or_exit_247_means_out_of_memory(self, code: int, oom: bool) -> None:
        assert reason_of(code, oom=oom) is Reason.OOM
        assert reason_of(137) is Reason.KILLED

    def test_the_replacement_gets_it_and_later_ones_keep_it(self) -> None:
        world = job(role=MEMORY)
        world.exit("worker-1-0", -9, oom=True)
        assert (last_request(world).node, last_request(world).memory_bytes) == ("worker-1-1", 8 * GIB)
        world.join_all()
        world.send(NodeGone("worker-1-1", "killed"))
        assert (last_request(world).node, last_request(world).memory_bytes) == ("worker-1-2", 8 * GIB)
        world.now += 60
        limits_by_node = {
            node.name: node.resources.memory_bytes for node in desired_nodes(world.state, world.spec, world.now)
        }
        assert limits_by_node == {"worker-0-0": 4 * GIB, "worker-1-2": 8 * GIB}

    def test_a_pod_that_was_killed_for_memory_counts_as_well(self) -> None:
        world = job(role=MEMORY)
        world.send(NodeGone("worker-1-0", "OOMKilled", 247))
        assert last_request(world).memory_bytes == 8 * GIB

    def test_at_the_limit_the_job_fails_and_says_how_much_it_had(self) -> None:
        world = job(role=MEMORY, oom=Oom(limit_bytes=6 * GIB))
        world.exit("worker-1-0", 247)
        assert last_request(world).memory_bytes == 6 * GIB
        world.join_all()
        world.exit("worker-1-1", 247)
        assert world.state.ended is not None
        assert world.state.ended.result is JobResult.FAILED
        assert "6 GiB" in world.state.ended.reason

    def test_a_node_with_all_of_its_hosts_memory_is_only_replaced(self) -> None:
        world = job()
        world.exit("worker-1-0", 247)
        assert (last_request(world).node, last_request(world).memory_bytes) == ("worker-1-1", 0)

    def test_where_nodes_come_by_themselves_it_restarts_in_place(self) -> None:
        world = World(by_themselves({"worker": RoleSpec(2, 2)}))
        world.join("a")
        world.join("b")
        world.exit("a", -9, oom=True)
        assert judgements(world) == [(Reason.OOM, Decision.RESTART)]


FAULTS = {
    Reason.USER_ERROR: lambda w: w.exit("worker-1-0", 1),
    Reason.KILLED: lambda w: w.exit("worker-1-0", -9),
    Reason.OOM: lambda w: w.exit("worker-1-0", 247),
    Reason.HARDWARE: lambda w: w.exit("worker-1-0", 201),
    Reason.NODE_LOST: lambda w: w.send(NodeGone("worker-1-0", "killed")),
}
COVERED = {
    RestartPolicy.ALWAYS: set(FAULTS),
    RestartPolicy.ON_FAILURE: {Reason.USER_ERROR, Reason.KILLED, Reason.OOM, Reason.HARDWARE},
    RestartPolicy.NEVER: set(),
    RestartPolicy.EXIT_CODE: {Reason.USER_ERROR},
    RestartPolicy.ON_NODE_FAIL: {Reason.KILLED, Reason.HARDWARE, Reason.NODE_LOST},
    RestartPolicy.ON_NODE_FAIL_WITH_EXIT_CODE: {Reason.USER_ERROR, Reason.KILLED, Reason.HARDWARE, Reason.NODE_LOST},
}


@pytest.mark.parametrize("policy", list(RestartPolicy))
@pytest.mark.parametrize("reason", list(FAULTS))
def test_a_restart_policy_covers_its_faults_and_no_other(policy: RestartPolicy, reason: Reason) -> None:
    listed = (FaultRule(exit_codes=(77,)),)
    world = job(role={"restart_policy": policy, "fault_rules": listed})
    if reason is Reason.USER_ERROR and "EXIT_CODE" in policy.name:
        world.exit("worker-1-0", 77)
    else:
        FAULTS[reason](world)
    world.join_all()
    ((reason_judged, decision),) = judgements(world)
    assert reason_judged is reason
    assert (decision is not Decision.GIVE_UP) == (reason in COVERED[policy])


def test_an_echo_of_a_kill_is_not_judged() -> None:
    world = job(role={"restart_policy": RestartPolicy.ON_NODE_FAIL})
    world.exit("worker-0-0", 1, error="RuntimeError: Connection closed by peer")
    world.exit("worker-1-0", -9)
    world.join_all()
    assert judgements(world) == [(Reason.KILLED, Decision.RESTART)]
    assert world.number == 2


@dataclass(frozen=True)
class Ending:
    """Something else than an error that ends a round of two nodes."""

    happens: Callable[[World], object]
    left: int = 2
    """Nodes of the next round."""


def _hang(world: World) -> None:
    world.beat_all(3, still_s=world.spec.hang.timeout_s)
    for name in ("worker-0-0", "worker-1-0"):
        world.dump(name)


def _grow(world: World) -> None:
    world.now += 1.0
    world.send(ScaleRequested("worker", 3))
    world.join("worker-2-0", after_round=0)


ENDINGS = {
    Reason.GROW: Ending(_grow, 3),
    Reason.SCALED: Ending(lambda world: world.send(ScaleRequested("worker", 1)), 1),
    Reason.HANG: Ending(_hang),
    Reason.REJOINED: Ending(lambda world: world.join("worker-1-0")),
    Reason.NODE_LOST: Ending(lambda world: world.send(NodeGone("worker-1-0", "killed"))),
    Reason.KILLED: Ending(lambda world: world.exit("worker-1-0", -9)),
    Reason.DIVERGED: Ending(lambda world: world.exit("worker-1-0", 76)),
}


@pytest.mark.parametrize("reason", list(ENDINGS))
def test_an_error_in_a_round_that_something_else_has_ended_is_its_echo(reason: Reason) -> None:
    role = {"max_nodes": 3}
    world = job(role=role, patience=Patience(max_restarts=0), hang=Hang(HangPolicy.RESTART, 60.0))
    ENDINGS[reason].happens(world)
    (broken,) = [record for record in world.records if isinstance(record, RoundBroken)]
    assert broken.reason is reason
    world.exit("worker-0-0", 1, error="ConnectionError: a rank is gone")
    world.join_all()
    assert world.state.ended is None
    assert (world.number, sum(world.state.members.values())) == (2, ENDINGS[reason].left)
    assert Reason.USER_ERROR not in dict(judgements(world))
    world.exit("worker-0-0", 1, error="ValueError: bad")
    world.join_all()
    assert world.state.ended is not None, "the next round's error is charged"


def test_an_error_while_a_member_is_missing_is_not_charged() -> None:
    world = job(3)
    world.exit("worker-0-0", 1, error="RuntimeError: timed out")
    world.join("worker-0-0")
    world.join("worker-1-0")  # worker-2-0 is cut off.
    for _ in range(7):
        world.now += 5
        world.beat("worker-0-0")
        world.beat("worker-1-0")
    assert (Reason.NO_HEARTBEAT, Decision.RELAUNCH_ELSEWHERE) in judgements(world)
    world.wait(40)
    assert world.number == 2
    assert world.state.blamed == {}
    assert Reason.USER_ERROR not in dict(judgements(world))


def test_the_first_fault_rule_that_fits_stands_before_the_policy() -> None:
    rules = (
        FaultRule(exit_codes=(5, 6), restart_policy=RestartPolicy.NEVER),
        FaultRule(events=(NodeEvent.NODE_NOT_READY,), restart_policy=RestartPolicy.NEVER),
    )
    for fault, decision in ((5, Decision.GIVE_UP), (4, Decision.RESTART)):
        world = job(role={"fault_rules": rules})
        world.exit("worker-1-0", fault)
        world.join_all()
        assert judgements(world) == [(Reason.USER_ERROR, decision)]
    world = job(role={"fault_rules": rules})
    world.send(NodeGone("worker-1-0", "NotReady"))
    assert judgements(world) == [(Reason.NODE_LOST, Decision.GIVE_UP)]


def test_listed_exit_codes_mean_hardware() -> None:
    world = job(hardware_exit_codes=(99,))
    world.exit("worker-1-0", 99)
    assert judgements(world) == [(Reason.HARDWARE, Decision.EXCLUDE)]
    assert world.state.avoided == {"local-1"}
    assert last_request(world).host == "local-2"


def test_an_agent_that_ends_with_such_a_code_is_faulty_hardware_too() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}))
    world.send(NodeGone("worker-1-0", "the check failed", 202))
    assert judgements(world) == [(Reason.HARDWARE, Decision.EXCLUDE)]
    assert last_request(world).host == "local-2"


def test_a_scope_wider_than_the_node_replaces_the_others_too_for_nothing() -> None:
    for scope, replaced in ((RestartScope.REPLICA, {"worker"}), (RestartScope.ALL, {"worker", "ps"})):
        roles = {"ps": RoleSpec(1, 1), "worker": RoleSpec(2, 1, restart_scope=scope)}
        world = World(platform(roles))
        world.join_all()
        world.exit("worker-1-0", -9)
        for _ in range(3):
            world.join_all()
        assert world.state.round is not None
        launches = {m.node for members in world.state.round.members.values() for m in members}
        expected = {"worker-0-1", "worker-1-1", "ps-0-1" if "ps" in replaced else "ps-0-0"}
        assert launches == expected
        assert world.state.restarts == {"worker": 1}


def test_a_restart_limit_bounds_all_restarts_of_a_role() -> None:
    world = job(role={"restart_limit": 2})
    for iteration in range(3):
        world.exit("worker-1-0", -9, iteration=iteration + 1)
        world.join_all()
    assert [decision for _, decision in judgements(world)] == [Decision.RESTART, Decision.RESTART, Decision.GIVE_UP]
    assert world.state.restarts == {"worker": 2}
    assert world.names(NodePhase.RUNNING) == ["worker-0-0"]


def test_where_nodes_come_by_themselves_their_loss_costs_no_restart_and_they_may_come_back() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 1, restart_limit=0)}))
    for name in ("n0", "n1"):
        world.join(name)
    for _ in range(2):
        world.join("n1", anew=True)
        world.join("n0")
        assert world.names(NodePhase.RUNNING) == ["n0", "n1"]
    assert {decision for _, decision in judgements(world)} == {Decision.MEMBERSHIP}
    world.exit("n1", -9)
    assert judgements(world)[-1] == (Reason.KILLED, Decision.GIVE_UP)


@pytest.mark.parametrize("times", [2, 4])
def test_the_same_error_may_come_so_often(times: int) -> None:
    world = job(patience=Patience(same_error=times, max_restarts=10))
    for attempt in range(times):
        assert world.state.ended is None, f"attempt {attempt}"
        world.exit("worker-0-0", 1)
        world.join_all()
    assert world.state.ended is not None
    assert "with the same error" in world.state.ended.reason


def test_the_same_error_may_cost_as_many_rounds_as_any_where_that_is_asked_for() -> None:
    world = job(patience=Patience(same_error=0, max_restarts=3))
    for _ in range(4):
        assert world.state.ended is None
        world.exit("worker-0-0", 1)
        world.join_all()
    assert world.state.ended is not None
    assert "3 restarts are allowed" in world.state.ended.reason


def test_a_replacement_that_does_not_come_within_its_time_is_replaced_again() -> None:
    world = job(role={"restart_time_limit_s": 50.0})
    world.send(NodeGone("worker-1-0", "killed"))
    world.join("worker-0-0")
    world.wait(49)
    assert "worker-1-2" not in world.state.nodes
    world.wait(1)
    assert (Reason.NEVER_JOINED, Decision.RELAUNCH_ELSEWHERE) in judgements(world)
    assert "worker-1-2" in world.state.nodes


def test_a_restart_timeout_bounds_how_long_the_minimum_is_waited_for() -> None:
    world = World(platform({"worker": RoleSpec(2, 2, restart_timeout_s=2000.0)}, patience=Patience(join_timeout_s=100)))
    world.join_all()
    world.send(NodeGone("worker-1-0", "killed"))
    world.wait(1999)
    assert world.state.ended is None
    world.wait(1)
    assert world.state.ended is not None
    assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.NO_QUORUM, 3)


@pytest.mark.parametrize(
    ("policy", "lost_names", "fails"),
    [
        (EndingPolicy.ANY, ["worker-1-0"], True), (EndingPolicy.NONE, ["worker-1-0"], False),
        (EndingPolicy.RANK0, ["worker-1-0"], False), (EndingPolicy.RANK0, ["worker-0-0"], True),
        (EndingPolicy.ALL, ["worker-1-0"], False),
    ],
)  # fmt: skip
def test_a_fail_policy_says_which_given_up_nodes_fail_the_job(
    policy: EndingPolicy, lost_names: list[str], fails: bool
) -> None:
    world = job(role={"restart_policy": RestartPolicy.NEVER, "fail_policy": policy})
    for name in lost_names:
        world.send(NodeGone(name, "killed"))
    assert (world.state.ended is not None) == fails
    if world.state.ended:
        assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.FAILED, 3)
        assert lost_names[0].rpartition("-")[0] in world.state.ended.reason


def test_when_too_few_are_left_after_an_error_that_is_not_restarted_its_traceback_is_told() -> None:
    world = World(platform({"worker": RoleSpec(2, 2, restart_policy=RestartPolicy.NEVER)}))
    world.join_all()
    world.exit("worker-1-0", 1)
    world.join_all()
    assert world.state.ended is not None
    assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.FAILED, 1)
    assert world.state.ended.error == "ValueError: bad"


@pytest.mark.parametrize(
    ("policy", "finished", "is_completed"),
    [
        (EndingPolicy.ALL, ["worker-0-0"], False), (EndingPolicy.ALL, ["worker-0-0", "worker-1-0"], True),
        (EndingPolicy.ANY, ["worker-1-0"], True), (EndingPolicy.RANK0, ["worker-1-0"], False),
        (EndingPolicy.RANK0, ["worker-0-0"], True),
    ],
)  # fmt: skip
def test_a_complete_policy_says_whose_end_completes_a_role(
    policy: EndingPolicy, finished: list[str], is_completed: bool
) -> None:
    world = job(role={"complete_policy": policy})
    for name in finished:
        world.send(NodeFinishedRound(Finished(name, 1)))
    assert (world.state.ended is not None) == is_completed
    assert world.state.ended is None or world.state.ended.result is JobResult.SUCCEEDED


def test_a_role_with_the_complete_policy_none_is_not_waited_for() -> None:
    roles = {"ps": RoleSpec(1, 1, complete_policy=EndingPolicy.NONE), "worker": RoleSpec(1, 1)}
    world = World(platform(roles))
    world.join_all()
    world.send(NodeFinishedRound(Finished("worker-0-0", 1)))
    assert world.state.ended is not None
    assert not world.names(NodePhase.RUNNING)


@pytest.mark.parametrize(
    ("policy", "names_left"),
    [
        (CleanPodPolicy.ALL, []), (CleanPodPolicy.RUNNING, ["worker-0-0"]),
        (CleanPodPolicy.NONE, ["worker-0-0", "worker-1-0"]),
    ],
)  # fmt: skip
def test_a_clean_pod_policy_says_what_stays_of_an_ended_job(policy: CleanPodPolicy, names_left: list[str]) -> None:
    world = job(clean_pod_policy=policy)
    world.send(StopRequested("told to stop"))
    world.send(NodeGone("worker-0-0", "ended by itself", 0))
    later = world.now + world.spec.patience.leave_s + 1
    assert sorted(node.name for node in desired_nodes(world.state, world.spec, later)) == names_left


def test_a_straggler_is_replaced_before_the_round_when_the_policy_excludes_it() -> None:
    for policy in StragglerPolicy:
        world = World(platform({"worker": RoleSpec(4, 2)}, stragglers=policy))
        world.checked = {"worker-2-0": 136.0, "worker-0-0": 23.2, "worker-1-0": 20.3, "worker-3-0": 20.3}
        world.join_all()
        excluded = (Reason.STRAGGLER, Decision.EXCLUDE) in judgements(world)
        assert excluded == (policy is not StragglerPolicy.REPORT)
        assert world.state.avoided == ({"local-2"} if excluded else set())
        world.join_all()
        assert len(world.names(NodePhase.RUNNING)) == 4


def test_of_two_nodes_neither_is_a_straggler() -> None:
    world = World(platform({"worker": RoleSpec(2, 2)}, stragglers=StragglerPolicy.EXCLUDE))
    world.checked = {"worker-0-0": 1.0, "worker-1-0": 1000.0}
    world.join_all()
    assert world.names(NodePhase.RUNNING) == ["worker-0-0", "worker-1-0"]


def test_a_loss_where_nodes_come_by_themselves_costs_nothing() -> None:
    world = World(by_themselves({"worker": RoleSpec(2, 1)}))
    world.join("a")
    world.join("b")
    world.send(NodeGone("b", "killed"))
    assert judgements(world) == [(Reason.NODE_LOST, Decision.MEMBERSHIP)]
    assert world.state.restarts == {}


def test_a_report_of_a_worker_of_an_old_round_changes_nothing() -> None:
    world = job()
    world.exit("worker-1-0", -9)
    world.join_all()
    before = world.state
    world.send(WorkerExited(WorkerExit("worker-1-0", 1, 0, 0, 201, 9)))
    assert world.state is before
    assert world.spec.placement is Placement.PLATFORM
