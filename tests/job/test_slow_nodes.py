"""A node that the others wait for is named with its slow part, and replaced where the policy says so."""

import pytest

from everstep.runtime.job.fold import fold
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.records import FaultJudged, RoundBroken, SlowSeen
from everstep.runtime.job.slow_nodes import REPLACED_WINDOWS, SEEN_WINDOWS
from everstep.runtime.job.spec import JobSpec, Placement, RoleSpec, StragglerPolicy
from everstep.runtime.watch.slow_ranks import Pace, SlowPart
from tests.job.world import World, by_themselves, platform


def training(spec: JobSpec) -> World:
    """A job whose nodes all train."""
    world = World(spec)
    if spec.placement is Placement.JOINED:
        for name in ("a", "b", "c"):
            world.join(name)
    world.join_all()
    assert world.state.phase == "running"
    return world


def three(policy: StragglerPolicy, least: int = 2) -> World:
    """A job of three nodes."""
    return training(platform({"worker": RoleSpec(3, least)}, stragglers=policy))


def records_of(world: World) -> list[SlowSeen]:
    """What the journal says of slow nodes."""
    return [record for record in world.records if isinstance(record, SlowSeen)]


@pytest.mark.parametrize("policy", StragglerPolicy)
def test_a_slow_node_is_named_once_with_what_is_slow(policy: StragglerPolicy) -> None:
    world = three(policy)
    for window in range(SEEN_WINDOWS + 2):
        assert len(records_of(world)) == (window >= SEEN_WINDOWS)
        world.pace("worker-1-0")
    (record,) = records_of(world)
    assert (record.node, record.ranks, record.part) == ("worker-1-0", (1,), SlowPart.CPU)
    assert record.detail.startswith("worker-1-0: rank 1 is slow, 3 s of its own per iteration; the others take 1 s")
    assert world.state.slow == (record,)
    assert world.state.phase == "running"


def test_a_window_that_is_slow_by_chance_is_not_named() -> None:
    world = three(StragglerPolicy.REPLACE)
    for _ in range(5):
        world.pace("worker-1-0")
        world.pace("worker-2-0")
        world.pace("")
    assert records_of(world) == []


def test_with_the_policy_replace_it_is_replaced_and_its_host_avoided() -> None:
    world = three(StragglerPolicy.REPLACE)
    for _ in range(REPLACED_WINDOWS):
        assert world.state.phase == "running"
        world.pace("worker-1-0")
    broken = next(record for record in world.records if isinstance(record, RoundBroken))
    judged = next(record for record in world.records if isinstance(record, FaultJudged))
    assert (broken.reason, broken.node, broken.iteration) == (Reason.STRAGGLER, "worker-1-0", 5)
    assert judged.decision is Decision.EXCLUDE
    assert "host: CPU" in judged.detail
    world.join_all()
    assert world.names(NodePhase.RUNNING) == ["worker-0-0", "worker-1-1", "worker-2-0"]
    assert world.state.avoided == {"local-1"}
    assert world.state.restarts == {}, "nothing failed"
    world.check_history()


def test_the_next_node_of_the_same_replica_is_only_named() -> None:
    world = three(StragglerPolicy.REPLACE)
    for _ in range(REPLACED_WINDOWS):
        world.pace("worker-1-0")
    world.join_all()
    for _ in range(3 * REPLACED_WINDOWS):
        world.pace("worker-1-1")
    assert world.state.phase == "running"
    assert [record.node for record in records_of(world)] == ["worker-1-0", "worker-1-1"]


def test_a_job_that_needs_all_its_nodes_keeps_the_slow_one() -> None:
    world = three(StragglerPolicy.REPLACE, least=3)
    for _ in range(2 * REPLACED_WINDOWS):
        world.pace("worker-1-0")
    assert world.state.phase == "running"
    assert len(records_of(world)) == 1


def test_where_nodes_come_by_themselves_the_others_go_on_without_it() -> None:
    world = training(by_themselves({"worker": RoleSpec(3, 2, restart_limit=0)}, stragglers=StragglerPolicy.REPLACE))
    for _ in range(REPLACED_WINDOWS):
        world.pace("b")
    world.join_all()
    world.wait(world.spec.patience.join_window_s)
    assert world.names(NodePhase.RUNNING) == ["a", "c"]
    assert not world.join("b", anew=True), "its host is avoided"


def test_a_node_is_not_replaced_for_what_others_suffer_too() -> None:
    world = training(platform({"worker": RoleSpec(5, 2)}, stragglers=StragglerPolicy.REPLACE))
    for _ in range(2 * REPLACED_WINDOWS):
        for name in world.names(NodePhase.RUNNING):
            own_s = {"worker-1-0": 3.0, "worker-2-0": 2.9}.get(name, 1.0)
            world.beat(name, 5, paces=(Pace(world.state.nodes[name].first_rank, 4, 50, 1 - own_s / 3, 3.0),))
    assert world.state.phase == "running"
    assert [record.ranks for record in records_of(world)] == [(1, 2)]


@pytest.mark.parametrize("policy", StragglerPolicy)
def test_slow_connections_are_named_whichever_end_is_slower_and_replace_nobody(policy: StragglerPolicy) -> None:
    world = three(policy)
    for window in range(2 * REPLACED_WINDOWS):
        for name in world.names(NodePhase.RUNNING):
            rank = world.state.nodes[name].first_rank
            rtt_s = 0.3 if rank == window % 2 else 0.01
            world.beat(name, 5, paces=(Pace(rank, 4, 50, 0.9, 1.0, rtt_s=rtt_s),))
    assert world.state.phase == "running"
    assert records_of(world)[0].part is SlowPart.NETWORK


def test_a_silent_node_delays_the_verdict_and_a_takeover_begins_anew() -> None:
    world = three(StragglerPolicy.REPORT)
    for _ in range(SEEN_WINDOWS):
        for name, own_s in (("worker-0-0", 1.0), ("worker-1-0", 3.0)):
            world.beat(name, 5, paces=(Pace(world.state.nodes[name].first_rank, 4, 50, 1 - own_s / 3, 3.0),))
    assert records_of(world) == []
    for _ in range(SEEN_WINDOWS - 1):
        world.pace("worker-1-0")
    world.takeover()
    for _ in range(SEEN_WINDOWS - 1):
        world.pace("worker-1-0")
    assert records_of(world) == []
    world.pace("worker-1-0")
    assert len(records_of(world)) == 1
    assert fold(world.records) == world.state
