"""The brain in virtual time, under every order of joins, deaths, losses, late messages, jumps and takeovers."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.job import policy, rounds
from runtime.job.brain import Brain, Journal, Refused, UnknownNode, WriteManifest
from runtime.job.events import (
    Event,
    HeartbeatSeen,
    Joined,
    ManifestWritten,
    NodeFinishedRound,
    NodeGone,
    Opened,
    ScaleAsked,
    ShardStored,
    Tick,
    WorkerExited,
)
from runtime.job.messages import Finished, Heartbeat, Holding, Join, Persisted, WorkerExit
from runtime.job.nodes import NodePhase
from runtime.job.records import MasterClaimed, Record, RoundFormed
from runtime.job.seats import seat_for
from runtime.job.sizes import size
from runtime.job.spec import JobSpec, RoleSpec
from runtime.job.state import JobPhase, State, fold

SPEC = JobSpec("j", {"worker": RoleSpec(3, 2)})


class World:
    """A job whose agents do what the test draws. Checks after each event what must always hold."""

    def __init__(self, spec: JobSpec = SPEC) -> None:
        self.spec = spec
        self.now = 1000.0
        self.records: list[Record] = []
        self.states: list[State] = []
        self.manifests: list[WriteManifest] = []
        self.sent: list[Event] = []
        self.held: dict[str, tuple[Holding, ...]] = {}
        self.takeover()

    def takeover(self) -> None:
        state = fold(self.records)
        claim = MasterClaimed(time=max(self.now, state.time), epoch=state.epoch + 1, address="m:1")
        self.records.append(claim)
        self.states.append(fold([claim], state))
        self.brain = Brain(self.spec, self.states[-1], self.now)
        self.send(Opened())

    def send(self, event: Event) -> None:
        self.sent.append(event)
        try:
            decisions = self.brain.handle(event, self.now)
        except UnknownNode:
            return
        for decision in decisions:
            match decision:
                case Journal(record):
                    self.records.append(record)
                case WriteManifest():
                    self.manifests.append(decision)
        self.check()

    def check(self) -> None:
        state = self.brain.state
        assert fold(self.records) == state
        assert self.brain.reason
        deadline = self.brain.next_deadline()
        assert deadline is None or deadline > min(self.now, state.time)
        if state.phase is not JobPhase.ENDED:
            assert deadline is not None, "a job that has not ended looks again some time"

    def names(self, *phases: NodePhase) -> list[str]:
        return sorted(n.name for n in self.brain.state.nodes.values() if n.phase in phases)

    def join(self, name: str, after_round: int | None = None) -> None:
        current = self.brain.state.round.number if self.brain.state.round else 0
        at = current if after_round is None else after_round
        role = name.rpartition("-")[0].rpartition("-")[0]
        self.send(Joined(Join(name, role, "h", 1, f"{name}:1", 29500, self.held.get(name, ()), at)))

    def stage(self, iteration: int) -> None:
        """All running members stage the same iteration."""
        round_ = self.brain.state.round
        for name in self.names(NodePhase.RUNNING):
            assert round_ is not None
            self.held[name] = (Holding(round_.number, iteration, node=name, address="a"),)
            self.send(HeartbeatSeen(Heartbeat(name, round_.number, iteration)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_happens_in_whatever_order_the_rules_hold(data: st.DataObject) -> None:
    world = World()
    iteration = 0
    for _ in range(data.draw(st.integers(1, 40))):
        state = world.brain.state
        every = sorted(state.nodes) or ["worker-0-0"]
        name = data.draw(st.sampled_from(every))
        number = state.round.number if state.round else 0
        late = max(0, number - data.draw(st.sampled_from([0, 0, 0, 1])))
        match data.draw(st.sampled_from(
            ["join", "join", "join all", "fault", "gone", "finish", "stage", "persist", "manifest", "late", "tick",
             "jump", "back", "takeover", "scale", "beat"]
        )):  # fmt: skip
            case "join":
                world.join(name, late)
            case "join all":
                for waiting in world.names(NodePhase.REQUESTED, NodePhase.REJOINING):
                    world.join(waiting)
            case "fault":
                code = data.draw(st.sampled_from([-9, 1, -6, 201, 247, -15]))
                world.send(WorkerExited(WorkerExit(name, late, 0, 0, code, iteration, "ValueError: x", world.now)))
            case "gone":
                world.send(NodeGone(name, "killed"))
            case "finish":
                world.send(NodeFinishedRound(Finished(name, late)))
            case "stage":
                iteration += 1
                world.stage(iteration)
            case "persist":
                shard = Holding(late, iteration, shard=data.draw(st.integers(0, 1)), shards=2, key=f"k{iteration}")
                try:
                    world.send(ShardStored(Persisted(name, shard)))
                except Refused:
                    assert late == 0, "only a shard of no round is refused"
            case "manifest":
                for asked in world.manifests:
                    if not world.brain.state.checkpoints[asked.round, asked.iteration].manifest:
                        world.send(ManifestWritten(asked.round, asked.iteration, "m"))
            case "late":
                with suppress(Refused):
                    world.send(data.draw(st.sampled_from(world.sent)))
            case "tick":
                world.now = max(world.now, world.brain.next_deadline() or world.now)
                world.send(Tick())
            case "jump":
                world.now += data.draw(st.sampled_from([1.0, 40.0, 1000.0]))
                world.send(Tick())
            case "back":
                world.now -= 50.0
                world.send(Tick())
            case "takeover":
                world.takeover()
            case "scale":
                with suppress(Refused):
                    world.send(ScaleAsked("worker", data.draw(st.integers(1, 4))))
            case "beat":
                world.send(HeartbeatSeen(Heartbeat(name, late, iteration)))
    formed = [record for record in world.records if isinstance(record, RoundFormed)]
    assert [record.round.number for record in formed] == list(range(1, len(formed) + 1))
    for position, record in enumerate(world.records):
        if isinstance(record, RoundFormed):
            before = fold(world.records[:position])
            members = record.round.members["worker"]
            assert 2 <= len(members) <= size(before, SPEC, "worker") <= 3
            assert all(before.nodes[member.node].phase is NodePhase.WAITING for member in members)
            restore = record.round.restore
            if restore:
                shards = {(s.shard, s.shards) for s in restore.sources}
                assert {(s.round, s.iteration) for s in restore.sources} == {(restore.round, restore.iteration)}
                assert {shard for shard, _ in shards} == set(range(next(iter(shards))[1]))
    assert [record.time for record in world.records] == sorted(record.time for record in world.records)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["join", "gone", "kill"]), max_size=12), st.integers(0, 100))
def test_a_job_whose_nodes_fall_silent_ends_with_a_reason(steps: list[str], seed: int) -> None:
    world = World()
    for position, step in enumerate(steps):
        every = sorted(world.brain.state.nodes)
        name = every[(seed + position) % len(every)]
        if step == "join":
            world.join(name)
        elif step == "gone":
            world.send(NodeGone(name, "test"))
        else:
            number = world.brain.state.round.number if world.brain.state.round else 0
            world.send(WorkerExited(WorkerExit(name, number, 0, 0, -9, 0)))
    for _ in range(5000):
        deadline = world.brain.next_deadline()
        if world.brain.state.ended or deadline is None:
            break
        assert deadline > world.now, "a tick at its deadline must not ask for the same tick again"
        world.now = deadline
        world.send(Tick())
    ended = world.brain.state.ended
    assert ended is not None
    assert ended.exit_code == 3
    assert ended.reason


def test_a_takeover_changes_nothing_for_a_running_round() -> None:
    world = World()
    for name in world.names(NodePhase.REQUESTED):
        world.join(name)
    running = world.brain.state.round
    world.now += 500
    world.takeover()
    world.now += 20
    world.send(Tick())
    assert world.brain.state.phase is JobPhase.RUNNING
    assert world.brain.state.round == running


def test_a_seat_that_got_lost_is_handed_out_again_without_a_new_round() -> None:
    world = World()
    for name in world.names(NodePhase.REQUESTED):
        world.join(name)
    before = world.brain.state
    world.join("worker-0-0", after_round=0)
    assert world.brain.state is before
    assert seat_for(before, "worker-0-0", 0) is not None
    assert seat_for(before, "worker-0-0", 1) is None


def test_the_tables_know_every_reason_a_worker_may_die_of() -> None:
    for code in range(-64, 256):
        assert policy.reason_of(code) in policy.DECISIONS


def test_a_running_round_is_broken_to_grow_only_after_the_cool_down() -> None:
    world = World(JobSpec("j", {"worker": RoleSpec(2, 1)}))
    world.join("worker-0-0")
    world.join("worker-1-0")
    world.send(NodeGone("worker-1-0", "killed"))
    world.join("worker-0-0")
    waits = rounds.decide(world.now, world.brain.state, world.spec)
    assert waits.deadline == world.now + 10
    world.now += 10
    world.send(Tick())
    assert world.brain.state.round is not None
    assert (world.brain.state.round.number, len(world.brain.state.round.members["worker"])) == (2, 1)
    formed_at = world.now
    world.now += 1
    world.join("worker-1-1", after_round=0)
    assert world.brain.state.phase is JobPhase.RUNNING
    while world.brain.state.phase is JobPhase.RUNNING:
        deadline = world.brain.next_deadline()
        assert deadline is not None
        world.now = deadline
        world.send(HeartbeatSeen(Heartbeat("worker-0-0", 2)))
        world.send(HeartbeatSeen(Heartbeat("worker-1-1", 0)))
    assert world.now == formed_at + 30
    world.join("worker-0-0", after_round=2)
    assert world.brain.state.round.number == 3
    assert [m.node for m in world.brain.state.round.members["worker"]] == ["worker-0-0", "worker-1-1"]
