"""The brain in virtual time, under every order of joins, deaths, losses, notices, late messages, jumps, takeovers."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.job.brain import Refused
from everstep.runtime.job.events import (
    DeletionDue,
    LeaveAnnounced,
    ManifestWritten,
    NodeCreated,
    NodeFinishedRound,
    NodeGone,
    RankDisconnected,
    ScaleRequested,
    ShardStored,
    Tick,
    WorkerExited,
)
from everstep.runtime.job.fold import fold
from everstep.runtime.job.nodes import NodePhase
from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.spec import (
    EndingPolicy,
    FaultRule,
    Hang,
    HangPolicy,
    JobSpec,
    Oom,
    Resources,
    RestartPolicy,
    RestartScope,
    RoleSpec,
    StragglerPolicy,
)
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Disconnected, Finished, Leaving, Persisted, WorkerExit
from tests.examples import examples
from tests.job.world import World, by_themselves, platform

GIB = 1 << 30
SPECS = [
    platform(),
    platform(
        {"worker": RoleSpec(4, 2, node_unit=2, max_nodes=6, scale_out_timeout_s=20.0)},
        stragglers=StragglerPolicy.REPLACE, peer_copies=2,
    ),
    platform(
        {
            "chief": RoleSpec(
                1, 1, waits_for=("worker",), complete_policy=EndingPolicy.RANK0, restart_scope=RestartScope.REPLICA,
            ),
            "worker": RoleSpec(
                3, 1, priority=1, resources=Resources(memory_bytes=4 * GIB), restart_limit=5,
                fail_policy=EndingPolicy.ALL,
                fault_rules=(FaultRule(exit_codes=(7,), restart_scope=RestartScope.ALL),),
            ),
        },
        oom=Oom(limit_bytes=8 * GIB), hang=Hang(HangPolicy.FAIL, 60.0),
    ),
    platform(
        {"worker": RoleSpec(3, 1, restart_policy=RestartPolicy.ON_NODE_FAIL, fail_policy=EndingPolicy.ANY)},
        hang=Hang(HangPolicy.REPORT, 60.0),
    ),
    by_themselves({"worker": RoleSpec(3, 1)}),
    by_themselves({"worker": RoleSpec(4, 2, node_unit=2)}, topology=("a p 10.0.0.2", "b p 10.0.0.3")),
]  # fmt: skip
ACTS = [
    "join", "join", "anew", "join all", "join all", "exit", "gone", "finish", "stage", "persist", "manifest", "delete",
    "late", "tick", "tick", "jump", "back", "takeover", "scale", "beat", "leave", "hang", "dump", "created", "pass",
    "slow", "slow", "disconnect",
]  # fmt: skip


def act(world: World, data: st.DataObject, iteration: int) -> None:
    """One thing that may happen."""
    name = data.draw(st.sampled_from(world.everybody() or ["nobody"]))
    late = max(0, world.number - data.draw(st.sampled_from([0, 0, 0, 1])))
    match data.draw(st.sampled_from(ACTS)):
        case "join":
            world.join(name, late)
        case "anew":
            world.checked[name] = data.draw(st.sampled_from([0.0, 1.0, 50.0]))
            world.join(name, anew=True)
        case "join all":
            world.join_all()
        case "exit":
            code, oom = data.draw(st.sampled_from([-9, 1, -6, 201, 247, -15, 7, 137])), data.draw(st.booleans())
            world.send(WorkerExited(WorkerExit(name, late, 0, 0, code, iteration, "ValueError: x", 0.0, oom)))
        case "disconnect":
            world.send(RankDisconnected(Disconnected(name, late, 0, iteration, "RuntimeError: closed by peer")))
        case "gone":
            code, gave_way = data.draw(st.sampled_from([None, 0, 1, 201, 247])), data.draw(st.booleans())
            world.send(NodeGone(name, "killed", code, gave_way))
        case "finish":
            world.send(NodeFinishedRound(Finished(name, late)))
        case "stage":
            world.stage(iteration)
        case "persist":
            shard = Holding(late, iteration, shard=data.draw(st.integers(0, 1)), shards=2, key=f"k{iteration}")
            with suppress(Refused):
                world.send(ShardStored(Persisted(name, shard)))
        case "manifest":
            for wish in world.manifests:
                stored_checkpoint = world.state.checkpoints.get((wish.round, wish.iteration))
                if stored_checkpoint and not stored_checkpoint.manifest:
                    world.send(ManifestWritten(wish.round, wish.iteration, "m"))
        case "delete":
            whole = sorted(
                place for place, stored_checkpoint in world.state.checkpoints.items() if stored_checkpoint.manifest
            )
            world.send(DeletionDue(tuple(whole[: -data.draw(st.integers(1, 2))])))
        case "late":
            world.send(data.draw(st.sampled_from(world.sent)))
        case "tick":
            world.now = max(world.now, world.brain.next_deadline() or world.now)
            world.send(Tick())
        case "jump":
            world.now += data.draw(st.sampled_from([1.0, 7.0, 40.0, 1000.0]))
            world.send(Tick())
        case "pass":
            world.wait(data.draw(st.sampled_from([5.0, 12.0, 35.0])))
        case "back":
            world.now -= 50.0
            world.send(Tick())
        case "takeover":
            world.takeover(is_batch_lost=data.draw(st.booleans()))
        case "scale":
            role = data.draw(st.sampled_from(sorted(world.spec.roles)))
            world.send(ScaleRequested(role, data.draw(st.integers(1, 6)), data.draw(st.sampled_from((0.0, 20.0)))))
        case "beat":
            world.beat(name, iteration)
        case "leave":
            world.send(LeaveAnnounced(Leaving(name, "SIGTERM", data.draw(st.sampled_from([-1.0, 0.0, 3.0, 30.0])))))
        case "hang":
            world.beat_all(iteration, still_s=world.spec.hang.timeout_s)
        case "slow":
            for _ in range(data.draw(st.sampled_from([1, 2, 7]))):
                world.pace(name)
        case "dump":
            world.dump(name)
        case "created":
            world.send(NodeCreated(name))


@settings(max_examples=examples(150))
@given(st.sampled_from(SPECS), st.data())
def test_whatever_happens_in_whatever_order_the_rules_hold(spec: JobSpec, data: st.DataObject) -> None:
    world = World(spec)
    for step in range(data.draw(st.integers(1, 40))):
        act(world, data, iteration=step // 3)
    world.check_history()


@settings(max_examples=examples(100))
@given(st.sampled_from(SPECS), st.data())
def test_a_snapshot_of_any_prefix_and_the_rest_of_the_journal_lead_to_the_same_state(
    spec: JobSpec, data: st.DataObject
) -> None:
    world = World(spec)
    for step in range(data.draw(st.integers(1, 25))):
        act(world, data, iteration=step // 3)
    for cut in range(len(world.records) + 1):
        first = fold(world.records[:cut])
        again = decode_snapshot(encode_snapshot(first))
        assert again == first
        assert encode_snapshot(again) == encode_snapshot(first)
        assert fold(world.records[cut:], again) == world.state


@settings(max_examples=examples(100))
@given(st.sampled_from(SPECS), st.data())
def test_a_job_whose_nodes_fall_silent_ends_with_a_reason(spec: JobSpec, data: st.DataObject) -> None:
    world = World(spec)
    for _ in range(data.draw(st.integers(0, 12))):
        act(world, data, iteration=0)
    for _ in range(5000):
        deadline = world.brain.next_deadline()
        if world.state.ended or deadline is None:
            break
        world.now = deadline
        world.send(Tick())
    assert world.state.ended is not None
    assert world.state.ended.reason
    assert not world.names(NodePhase.REQUESTED, NodePhase.WAITING, NodePhase.RUNNING, NodePhase.REJOINING)


@settings(max_examples=examples(100))
@given(st.sampled_from(SPECS), st.data())
def test_a_job_whose_nodes_all_come_back_trains_on_or_has_ended(spec: JobSpec, data: st.DataObject) -> None:
    world = World(spec)
    for step in range(data.draw(st.integers(0, 15))):
        act(world, data, iteration=step // 3)
    for _ in range(40):
        world.join_all()
        if not world.state.nodes:
            world.join("n0", anew=True)
        for name in world.everybody():
            if name not in world.state.nodes or world.state.nodes[name].phase is NodePhase.LOST:
                world.join(name, anew=True)
        world.wait(31.0)
        if world.state.ended or (world.state.phase == "running" and not world.state.hang):
            break
    assert world.state.ended or world.state.phase == "running", world.brain.reason
