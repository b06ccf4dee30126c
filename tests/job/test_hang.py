"""All ranks stand still: stacks of all first, then what the policy says."""

import pytest

from everstep.runtime.job.assignments import directive
from everstep.runtime.job.events import HeartbeatSeen, StacksDumped
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import HangExplained, HangOver, HangSeen, RoundBroken
from everstep.runtime.job.spec import START_TIMEOUT_S, Hang, HangPolicy, RoleSpec
from everstep.runtime.protocol.messages import Action, Dumped, Heartbeat
from everstep.runtime.watch.hang_culprit import ProcessState, Standing
from tests.job.world import World, platform


def hanging(policy: HangPolicy) -> World:
    """A job of two nodes of which all ranks stand still for the timeout."""
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(policy, 60.0)))
    world.join_all()
    world.beat("worker-0-0", 5, still_s=61.0)
    assert world.state.hang is None, "one that stands still does not make a hang"
    world.beat("worker-1-0", 5, still_s=60.0)
    return world


def test_all_nodes_are_told_to_write_their_stacks() -> None:
    world = hanging(HangPolicy.RESTART)
    assert isinstance(world.records[-1], HangSeen)
    for name in ("worker-0-0", "worker-1-0"):
        order = directive(world.state, name)
        assert order is not None
        assert (order.action, order.round) == (Action.DUMP, 1)
    assert world.state.phase == "running"


def test_the_round_is_broken_when_all_stacks_are_written() -> None:
    world = hanging(HangPolicy.RESTART)
    world.dump("worker-0-0")
    assert world.state.phase == "running"
    world.dump("worker-1-0")
    broken = world.records[-1]
    assert isinstance(broken, RoundBroken)
    assert (broken.reason, broken.iteration) == (Reason.HANG, 5)


def test_stacks_that_do_not_come_are_not_waited_for_forever() -> None:
    world = hanging(HangPolicy.RESTART)
    began, until = world.now, world.now + world.spec.patience.dump_s
    while world.now < until and world.state.phase == "running":
        world.now = min(until, world.now + 5)
        world.beat_all(5, still_s=world.now - began + 60)
    assert world.now == until
    assert world.state.phase == "forming"


def test_the_policy_fail_ends_the_job() -> None:
    world = hanging(HangPolicy.FAIL)
    for name in ("worker-0-0", "worker-1-0"):
        world.dump(name)
    assert world.state.ended is not None
    assert (world.state.ended.result, world.state.ended.exit_code) == (JobResult.FAILED, 1)
    assert "hung" in world.state.ended.reason


def test_the_policy_report_only_reports_and_says_when_it_is_over() -> None:
    world = hanging(HangPolicy.REPORT)
    for name in ("worker-0-0", "worker-1-0"):
        world.dump(name)
    assert world.state.phase == "running"
    assert world.state.hang is not None
    world.beat("worker-1-0", 6, still_s=0.5)
    assert isinstance(world.records[-1], HangOver)
    order = directive(world.state, "worker-0-0")
    assert order is not None
    assert order.action is Action.CONTINUE
    world.beat("worker-1-0", 6, still_s=70.0)
    world.beat("worker-0-0", 6, still_s=70.0)
    assert isinstance(world.records[-1], HangSeen)


@pytest.mark.parametrize("policy", list(HangPolicy))
def test_a_takeover_in_a_hang_does_not_take_it_for_over(policy: HangPolicy) -> None:
    world = hanging(policy)
    world.takeover()
    assert world.state.hang is not None
    world.now += world.spec.patience.dump_s
    world.beat("worker-0-0", 5, still_s=100.0)
    world.beat("worker-1-0", 5, still_s=100.0)
    assert (world.state.phase == "running") == (policy is HangPolicy.REPORT)


def starting(has_beacon: bool, limit_s: float = 600.0) -> World:
    """A job of two nodes that were told to start a minute before the limit is over, and have not moved."""
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.RESTART, 60.0, limit_s)))
    world.join_all()
    for second in range(0, 540, 10):
        world.now += 10
        for name in ("worker-0-0", "worker-1-0"):
            world.send(HeartbeatSeen(Heartbeat(name, 1, still_s=second + 10.0, has_beacon=has_beacon)))
    assert world.state.hang is None, "what comes before the first movement may take long"
    return world


def test_a_round_whose_ranks_never_move_hangs_when_the_longer_limit_of_a_start_is_over() -> None:
    world = starting(has_beacon=True)
    world.now += 60
    world.send(HeartbeatSeen(Heartbeat("worker-0-0", 1, still_s=600.0, has_beacon=True)))
    assert world.state.hang is None
    world.send(HeartbeatSeen(Heartbeat("worker-1-0", 1, still_s=600.0, has_beacon=True)))
    assert world.state.hang is not None
    assert (world.state.hang.still_s, world.state.hang.unmoved) == (600.0, True)
    world.dump("worker-0-0")
    world.dump("worker-1-0")
    broken = world.records[-1]
    assert isinstance(broken, RoundBroken)
    assert "600 s since they were told to start" in broken.detail


def test_a_member_that_never_comes_into_the_round_stands_still_too() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.RESTART, 60.0, 600.0)))
    world.join_all()
    for second in range(0, 600, 10):
        world.now += 10
        world.send(HeartbeatSeen(Heartbeat("worker-0-0", 1, still_s=second + 10.0, has_beacon=True)))
        world.send(HeartbeatSeen(Heartbeat("worker-1-0", 0, join=1, waits=True)))
        assert (world.state.hang is None) == (second < 590)


def test_ranks_that_have_no_beacon_never_hang_though_they_never_move() -> None:
    world = starting(has_beacon=False, limit_s=START_TIMEOUT_S)
    for second in range(600, 3000, 10):
        world.now += 10
        for name in ("worker-0-0", "worker-1-0"):
            world.send(HeartbeatSeen(Heartbeat(name, 1, still_s=float(second))))
    assert world.state.hang is None


def test_ranks_that_have_no_beacon_hang_at_the_limit_of_a_start_that_the_user_has_set() -> None:
    world = starting(has_beacon=False)
    world.now += 60
    for name in ("worker-0-0", "worker-1-0"):
        assert world.state.hang is None
        world.send(HeartbeatSeen(Heartbeat(name, 1, still_s=600.0)))
    assert isinstance(world.records[-1], HangSeen)


def test_stacks_written_for_an_earlier_hang_of_the_round_are_none_for_this_one() -> None:
    world = hanging(HangPolicy.REPORT)
    late = Dumped("worker-0-0", 1, world.state.nodes["worker-0-0"].directive)
    world.beat("worker-0-0", 6, still_s=0.5)
    world.beat("worker-0-0", 6, still_s=61.0)
    assert world.state.hang is not None
    world.send(StacksDumped(late))
    assert not world.brain._transaction.liveness.all_dumped(world.state)
    world.dump("worker-0-0")
    world.dump("worker-1-0")
    assert world.brain._transaction.liveness.all_dumped(world.state)


def test_a_late_heartbeat_does_not_end_a_hang() -> None:
    world = hanging(HangPolicy.REPORT)
    world.send(HeartbeatSeen(Heartbeat("worker-1-0", 1, 5, still_s=70.0, moved=True, number=7)))
    world.send(HeartbeatSeen(Heartbeat("worker-1-0", 1, 5, still_s=0.0, moved=True, number=6)))
    assert world.state.hang is not None
    world.send(HeartbeatSeen(Heartbeat("worker-1-0", 1, 5, still_s=0.0, moved=True, number=8)))
    assert world.state.hang is None


def test_a_worker_without_a_beacon_is_never_taken_for_hanging() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.FAIL, 60.0)))
    world.join_all()
    for _ in range(20):
        world.now += 10
        world.beat("worker-0-0", 0, still_s=0.0)
        world.beat("worker-1-0", 5, still_s=100.0)
    assert world.state.hang is None


@pytest.mark.parametrize(
    ("phase", "pace_s", "limit_s"),
    [
        ("forward", 0.0, 60.0),
        ("forward", 3.0, 60.0),
        ("forward", 9.0, 90.0),
        ("evaluation", 0.0, 1800.0),
        ("torch.save", 0.0, 1800.0),
        ("upload", 0.0, 600.0),
    ],
)
def test_slow_iterations_and_phases_have_limits_of_their_own(phase: str, pace_s: float, limit_s: float) -> None:
    world = World(platform({"worker": RoleSpec(1, 1)}, hang=Hang(HangPolicy.RESTART, 60.0, phases={"upload": 600.0})))
    world.join_all()
    signs = {"phase": phase, "pace_s": pace_s}
    world.beat("worker-0-0", 5, still_s=limit_s - 1, **signs)
    assert world.state.hang is None
    world.beat("worker-0-0", 5, still_s=limit_s, **signs)
    assert world.state.hang is not None
    assert world.state.hang.still_s == limit_s


def test_a_hang_says_for_how_long_all_have_stood_still() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.RESTART, 60.0)))
    world.join_all()
    world.beat("worker-0-0", 5, still_s=60.0, phase="forward")
    world.beat("worker-1-0", 5, still_s=1800.0, phase="evaluation")
    assert world.state.hang is not None
    assert world.state.hang.still_s == 60.0


def test_ranks_that_compute_and_wait_for_nobody_do_not_hang_unless_another_waits() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.RESTART, 60.0)))
    world.join_all()
    for name in ("worker-0-0", "worker-1-0"):
        world.beat(name, 5, still_s=61.0, is_working=True)
    assert world.state.hang is None
    world.beat("worker-1-0", 5, still_s=62.0)
    assert world.state.hang is not None


def test_the_rank_that_keeps_the_others_waiting_is_in_the_journal_before_the_round_is_broken() -> None:
    world = hanging(HangPolicy.RESTART)
    waits = Standing(0, 2, entered=7, completed=6, collective="all_reduce [3]")
    absent = Standing(1, 2, entered=6, completed=6, place="f (a.py:1)")
    for name, standing in (("worker-0-0", waits), ("worker-1-0", absent)):
        tell(world, name, standing)
    explained, broken = world.records[-2:]
    assert isinstance(explained, HangExplained)
    assert (explained.ranks, explained.detail) == ((1,), "rank 1 of 2 never entered all_reduce #7; it is in f (a.py:1)")
    assert isinstance(broken, RoundBroken)
    assert explained.detail in broken.detail
    assert world.state.hang_times == {1: explained.time}, "it stays known after the round"


def tell(world: World, name: str, *standings: Standing) -> None:
    """The node has written its stacks, and says where these ranks stand."""
    world.send(StacksDumped(Dumped(name, world.number, world.state.nodes[name].directive, standings)))


def test_what_a_node_says_of_ranks_that_are_not_its_own_or_of_their_number_does_not_count() -> None:
    world = hanging(HangPolicy.RESTART)
    own, others = (Standing(rank, 1 << 20, entered=7, completed=6, collective="all_reduce [3]") for rank in (0, 1))
    tell(world, "worker-0-0", own, Standing(1, 2, process=ProcessState("Z")), Standing(500, 1 << 20), own)
    tell(world, "worker-1-0", others)
    explained = world.records[-2]
    assert isinstance(explained, HangExplained)
    assert explained.ranks == (0, 1)
    assert "all 2 ranks are in all_reduce #7 and none is missing" in explained.detail


def test_of_many_ranks_the_journal_has_the_first_and_a_sentence_of_bounded_length() -> None:
    world = World(platform({"worker": RoleSpec(70, 1)}, hang=Hang(HangPolicy.RESTART, 60.0)))
    world.join_all()
    names = world.names(NodePhase.RUNNING)
    for name in names:
        world.beat(name, 5, still_s=61.0)
    for name in names:
        rank = world.state.nodes[name].first_rank
        tell(world, name, Standing(rank, 70, process=ProcessState("T"), place="x" * 5000))
    explained = world.records[-2]
    assert isinstance(explained, HangExplained)
    assert (explained.ranks, len(explained.detail)) == (tuple(range(64)), 4096)


def report_blocked(world: World, blocked_s: float, awaits: bool) -> None:
    """Both nodes say so, before their first progress."""
    for name in ("worker-0-0", "worker-1-0"):
        signs = {"blocked_s": blocked_s, "awaits": awaits and name == "worker-0-0"}
        world.send(HeartbeatSeen(Heartbeat(name, 1, still_s=blocked_s + 5, **signs)))


@pytest.mark.parametrize("awaits", [True, False])
def test_before_the_first_progress_ranks_hang_that_use_nothing_while_one_waits_for_the_others(awaits: bool) -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.RESTART, 60.0)))
    world.join_all()
    report_blocked(world, 59.0, awaits)
    assert world.state.hang is None
    report_blocked(world, 60.0, awaits)
    assert (world.state.hang is not None) == awaits
    if world.state.hang:
        assert (world.state.hang.still_s, world.state.hang.unmoved) == (60.0, True)


def test_before_the_first_progress_a_node_that_still_loads_is_waited_for() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.RESTART, 60.0)))
    world.join_all()
    world.send(HeartbeatSeen(Heartbeat("worker-0-0", 1, still_s=900.0, blocked_s=900.0, awaits=True)))
    world.send(HeartbeatSeen(Heartbeat("worker-1-0", 1, still_s=900.0, blocked_s=0.0)))
    assert world.state.hang is None
