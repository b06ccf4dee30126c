"""A state is restored only if its replicas agree; who differs from a majority is named and replaced elsewhere."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.job import certification
from everstep.runtime.job.brain import Refused
from everstep.runtime.job.events import EvidenceGiven, ManifestWritten, ShardStored
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Decision, JobResult, Reason
from everstep.runtime.job.records import (
    BatchSkipped,
    FaultJudged,
    RoundBroken,
    RoundFormed,
    StateCertified,
    StateRejected,
)
from everstep.runtime.job.spec import RoleSpec
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Evidence, Persisted
from tests.examples import examples
from tests.job.world import World, platform

GOOD, BAD = "a" * 32, "b" * 32


def world_of(nodes: int, every: int = 2, least: int = 1, **more: int) -> World:
    world = World(platform({"worker": RoleSpec(nodes, least)}, certify_interval=every, **more))
    world.join_all()
    return world


def tell(world: World, name: str, iteration: int, digest: str = GOOD, doubt: str = "") -> None:
    world.send(EvidenceGiven(Evidence(name, world.number, iteration, layout="l", digest=digest, doubt=doubt)))


def tell_all(world: World, iteration: int, wrong: Sequence[str] = ()) -> None:
    world.stage(iteration)
    for name in world.names(NodePhase.RUNNING):
        if world.state.phase is JobPhase.RUNNING:
            tell(world, name, iteration, BAD if name in wrong else GOOD)


def start(world: World) -> tuple[int, int] | None:
    restore = world.state.round.restore if world.state.round else None
    return (restore.round, restore.iteration) if restore else None


def of_kind(world: World, kind: type) -> list:
    return [record for record in world.records if isinstance(record, kind)]


def test_a_state_whose_replicas_agree_is_certified_once_all_have_told() -> None:
    world = world_of(3)
    tell(world, "worker-0-0", 2)
    tell(world, "worker-1-0", 2)
    assert not of_kind(world, StateCertified)
    tell(world, "worker-2-0", 2)
    assert [record.iteration for record in of_kind(world, StateCertified)] == [2]


def test_a_round_restores_the_newest_certified_state_and_not_a_newer_one() -> None:
    world = world_of(2)
    tell_all(world, 2)
    held_before = dict(world.held)
    world.stage(3)
    world.held = {name: (*held_before[name], *world.held[name]) for name in held_before}
    world.exit("worker-0-0", -9)
    world.join_all()
    assert start(world) == (1, 2)


def test_a_round_starts_from_nothing_if_nothing_is_certified() -> None:
    world = world_of(2)
    world.stage(3)
    world.exit("worker-0-0", -9)
    world.join_all()
    assert start(world) is None


def test_without_certification_the_newest_state_is_restored() -> None:
    world = world_of(2, every=0)
    world.stage(3)
    world.exit("worker-0-0", -9)
    world.join_all()
    assert start(world) == (1, 3)


def test_the_one_of_three_that_differs_is_named_and_replaced_on_another_host() -> None:
    world = world_of(3)
    tell_all(world, 2)
    held_before = dict(world.held)
    host = world.state.nodes["worker-1-0"].host
    tell_all(world, 4, wrong=["worker-1-0"])
    (rejected,) = of_kind(world, StateRejected)
    assert rejected.nodes == ("worker-1-0",)
    (judged,) = of_kind(world, FaultJudged)
    assert (judged.node, judged.reason, judged.decision) == ("worker-1-0", Reason.UNSOUND, Decision.EXCLUDE)
    assert host in world.state.avoided
    world.held = held_before
    world.join_all()
    assert start(world) == (1, 2)
    assert "worker-1-1" in world.names(NodePhase.RUNNING)


def test_of_two_that_differ_nobody_is_named_and_the_round_begins_from_the_certified_state() -> None:
    world = world_of(2)
    tell_all(world, 2)
    held_before = dict(world.held)
    tell_all(world, 4, wrong=["worker-1-0"])
    assert of_kind(world, StateRejected)[-1].nodes == ()
    assert of_kind(world, RoundBroken)[-1].reason is Reason.UNSOUND
    assert not of_kind(world, FaultJudged)
    world.held = held_before
    world.join_all()
    assert start(world) == (1, 2)


def test_a_loss_that_is_no_number_rejects_the_state_at_once_and_again_ends_the_job() -> None:
    world = world_of(2)
    tell_all(world, 2)
    for _ in range(2):
        tell(world, "worker-0-0", 3, doubt="its loss is nan")
        assert "its loss is nan" in of_kind(world, RoundBroken)[-1].detail
        world.join_all()
    assert world.state.ended is not None
    assert world.state.ended.result is JobResult.FAILED
    assert "happened 2 times" in world.state.ended.reason


def reject_loss(world: World, iteration: int, doubt: str = "its loss is nan") -> None:
    tell(world, world.names(NodePhase.RUNNING)[0], iteration, doubt=doubt)
    world.join_all()


def test_a_batch_whose_loss_is_unsound_again_is_skipped_by_the_rounds_after_it_up_to_the_limit() -> None:
    world = world_of(2, skip_batches=1)
    tell_all(world, 2)
    reject_loss(world, 3)
    assert world.state.skipped == ()
    reject_loss(world, 3)
    (skipped,) = of_kind(world, BatchSkipped)
    assert skipped.iteration == 3
    assert "happened 2 times: its batch is skipped (1 of at most 1)" in skipped.detail
    assert world.state.round is not None
    assert world.state.round.skips == (3,)
    reject_loss(world, 5)
    reject_loss(world, 5)
    assert world.state.ended is not None
    assert world.state.ended.result is JobResult.FAILED


def test_an_iteration_that_is_unsound_though_it_is_skipped_ends_the_job() -> None:
    """The script does not read its batches from everstep.batches."""
    world = world_of(2, skip_batches=5)
    for _ in range(3):
        reject_loss(world, 3)
    assert world.state.ended is not None
    assert [record.iteration for record in of_kind(world, BatchSkipped)] == [3]


def test_no_batch_is_skipped_for_replicas_that_differ() -> None:
    world = world_of(2, skip_batches=5)
    for _ in range(2):
        tell_all(world, 2, wrong=["worker-1-0"])
        world.join_all()
    assert world.state.ended is not None
    assert not of_kind(world, BatchSkipped)


def replay(world: World, iteration: int, wrong_ranks: tuple[int, ...] = ()) -> None:
    """Each node says that gradients came out otherwise on another rank."""
    for name in world.names(NodePhase.RUNNING):
        evidence = Evidence(name, world.number, iteration, replay="its gradients differ", wrong_ranks=wrong_ranks)
        world.send(EvidenceGiven(evidence))
    world.join_all()


def test_the_rank_whose_gradients_others_do_not_get_is_named_and_its_state_rejected_at_once() -> None:
    world = world_of(3)
    tell_all(world, 2)
    tell(world, "worker-0-0", 4)
    replay(world, 4, wrong_ranks=(2,))
    (rejected,) = of_kind(world, StateRejected)
    assert (rejected.iteration, rejected.nodes, rejected.detail) == (4, ("worker-2-0",), "its gradients differ")
    (judged,) = of_kind(world, FaultJudged)
    assert (judged.node, judged.reason, judged.decision) == ("worker-2-0", Reason.UNSOUND, Decision.EXCLUDE)


def test_gradients_that_come_out_otherwise_again_end_the_job_and_skip_no_batch() -> None:
    world = world_of(2, skip_batches=5)
    for _ in range(2):
        replay(world, 2)
    assert world.state.ended is not None
    assert "its gradients differ; this has happened 2 times" in world.state.ended.reason
    assert not of_kind(world, BatchSkipped)


def test_an_accused_rank_that_the_round_does_not_have_is_refused() -> None:
    world = world_of(2)
    evidence = Evidence("worker-0-0", world.number, 2, replay="its gradients differ", wrong_ranks=(2,))
    with pytest.raises(Refused, match="a rank that round 1 does not have"):
        world.brain.handle(EvidenceGiven(evidence), world.now)
    assert not of_kind(world, StateRejected)


def test_a_manifest_waits_for_the_verdict_and_names_it() -> None:
    world = world_of(2)
    key = "jobs/j/checkpoints/000001-000000002/rank-00000.safetensors"
    world.send(ShardStored(Persisted("worker-0-0", Holding(1, 2, size=9, key=key, digest=GOOD))))
    assert not world.manifests
    tell_all(world, 2)
    assert [manifest.is_certified for manifest in world.manifests] == [True]


def test_a_rejected_state_is_never_committed_as_certified() -> None:
    world = world_of(2)
    key = "jobs/j/checkpoints/000001-000000002/rank-00000.safetensors"
    world.send(ShardStored(Persisted("worker-0-0", Holding(1, 2, size=9, key=key, digest=GOOD))))
    tell_all(world, 2, wrong=["worker-0-0"])
    world.send(ManifestWritten(1, 2, "m"))
    world.join_all()
    assert not [manifest for manifest in world.manifests if manifest.is_certified]
    assert start(world) is None


def test_evidence_of_a_shard_that_there_is_not_is_refused() -> None:
    world = world_of(2)
    evidence = Evidence("worker-0-0", world.number, 2, shard=2, shards=2)
    with pytest.raises(Refused, match="shard 2 of 2"):
        world.brain.handle(EvidenceGiven(evidence), world.now)


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_replicas_are_compared_with_those_of_the_same_layout_alone(replicas: int) -> None:
    shards = 2 * replicas
    replicas_of_layouts = [
        Evidence(f"n{at}", 1, 2, at, shards, layout=f"part {at % 2}", digest=(GOOD, BAD)[at % 2])
        for at in range(shards)
    ]
    assert certification.judge(replicas_of_layouts).is_sound
    replicas_of_layouts[0] = Evidence("n0", 1, 2, 0, shards, layout="part 0", digest="c" * 32)
    verdict = certification.judge(replicas_of_layouts)
    assert not verdict.is_sound
    assert verdict.nodes == (("n0",) if replicas > 2 else ())


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["sound", "wrong", "loss", "replay", "part", "kill", "takeover", "join"]), st.integers(0, 2)
    ),
    max_size=40,
)


@settings(max_examples=examples(60))
@given(MOVES)
def test_whatever_happens_only_certified_states_are_restored_and_only_repeated_losses_skip(
    moves: list[tuple[str, int]],
) -> None:
    most = 2
    world = world_of(3, skip_batches=most)
    iteration = 2
    for what, at in moves:
        running = world.names(NodePhase.RUNNING)
        if world.state.phase is JobPhase.ENDED:
            break
        if what == "join" or world.state.phase is not JobPhase.RUNNING:
            world.join_all()
        elif what == "takeover":
            world.takeover()
        elif what == "kill":
            world.exit(running[at % len(running)], -9, iteration)
        elif what == "part":
            tell(world, running[at % len(running)], iteration)
        elif what == "replay":
            world.send(EvidenceGiven(Evidence(running[0], world.number, iteration, replay="r", wrong_ranks=(0,) * at)))
        elif what == "loss":
            tell(world, running[at % len(running)], iteration, doubt="its loss is inf")
        else:
            tell_all(world, iteration, wrong=[running[at % len(running)]] if what == "wrong" else [])
            iteration += 2
    world.check_history()
    check_restores(world)
    check_skips(world, most)


def check_restores(world: World) -> None:
    certified = set[tuple[int, int]]()
    for record in world.records:
        match record:
            case StateCertified(round=round_, iteration=sound):
                certified.add((round_, sound))
            case StateRejected(round=round_, iteration=unsound):
                certified = {place for place in certified if place < (round_, unsound)}
            case RoundFormed(round=formed) if formed.restore:
                assert (formed.restore.round, formed.restore.iteration) in certified


def check_skips(world: World, most: int) -> None:
    """A batch is skipped once its iteration was unsound twice, never twice, and by every round after that."""
    unsound, skipped = Counter[int](), list[int]()
    for record in world.records:
        match record:
            case StateRejected(iteration=iteration, nodes=()):
                unsound[iteration] += 1
            case BatchSkipped(iteration=iteration):
                assert unsound[iteration] >= 2
                assert iteration not in skipped
                skipped.append(iteration)
            case RoundFormed(round=formed):
                assert formed.skips == tuple(sorted(skipped))
    assert len(skipped) <= most


def test_replicas_that_differ_again_may_do_so_on_purpose() -> None:
    world = world_of(2)
    for _ in range(2):
        tell_all(world, 2, wrong=["worker-1-0"])
        world.join_all()
    assert world.state.ended is not None
    assert "such as BatchNorm's running means" in world.state.ended.reason
