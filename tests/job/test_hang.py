"""All ranks stand still: stacks of all first, then what the policy says."""

import pytest

from runtime.job.messages import Action
from runtime.job.records import HangOver, HangSeen, JobResult, Reason, RoundBroken
from runtime.job.seats import directive
from runtime.job.spec import Hang, HangPolicy, RoleSpec
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
        told = directive(world.state, name)
        assert told is not None
        assert (told.action, told.round) == (Action.DUMP, 1)
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
    told = directive(world.state, "worker-0-0")
    assert told is not None
    assert told.action is Action.CONTINUE
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


def test_a_worker_without_a_beacon_is_never_taken_for_hanging() -> None:
    world = World(platform({"worker": RoleSpec(2, 1)}, hang=Hang(HangPolicy.FAIL, 60.0)))
    world.join_all()
    for _ in range(20):
        world.now += 10
        world.beat("worker-0-0", 0, still_s=0.0)
        world.beat("worker-1-0", 5, still_s=100.0)
    assert world.state.hang is None
