"""A job in virtual time whose agents do what a test says; after each event what must always hold is checked."""

from typing import Any

from everstep.runtime.job.brain import Brain, Refused, WriteManifest, WriteRecord
from everstep.runtime.job.events import (
    Event,
    HeartbeatSeen,
    Joined,
    NodeChecked,
    Opened,
    RankDisconnected,
    StacksDumped,
    Tick,
    WorkerExited,
)
from everstep.runtime.job.fold import fold
from everstep.runtime.job.nodes import JOINED, NodePhase
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import Forgotten, MasterClaimed, Record, RoundFormed, ShardPersisted
from everstep.runtime.job.spec import JobSpec, Placement, RoleSpec
from everstep.runtime.job.spec_problems import problems
from everstep.runtime.job.state import State, round_number
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Disconnected, Dumped, Heartbeat, Join, SelfTest, WorkerExit
from everstep.runtime.watch.slow_ranks import Pace, SlowPart

_TO_JOIN = (NodePhase.REQUESTED, NodePhase.REJOINING, NodePhase.SUSPECTED)


class World:
    """One job, its journal, and the memory of its nodes."""

    def __init__(self, spec: JobSpec) -> None:
        assert not problems(spec)
        self.spec = spec
        self.now = 1000.0
        self.records: list[Record] = []
        self.states: list[tuple[int, State]] = []
        """(length of the journal, the state it led to) after each event."""
        self.manifests: list[WriteManifest] = []
        self.sent: list[Event] = []
        self.held: dict[str, tuple[Holding, ...]] = {}
        self.agents: dict[str, int] = {}
        """How often each agent was started anew: its address."""
        self.checked: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        """What a node finds when it tests itself, by its host."""
        self.host_of: dict[str, str] = {}
        """Where nodes are that the cluster places."""
        self.joins: dict[str, int] = {}
        """How often each agent has joined."""
        self._batch = 0
        self.takeover()

    @property
    def state(self) -> State:
        return self.brain.state

    @property
    def number(self) -> int:
        return round_number(self.state)

    def takeover(self, is_batch_lost: bool = False) -> None:
        """Another master replays the journal. `is_batch_lost`: the last event's records, one segment, had not become
        durable."""
        if is_batch_lost and self._batch:
            del self.records[-self._batch :]
            self.states = [(length, state) for length, state in self.states if length <= len(self.records)]
        state = fold(self.records)
        claim = MasterClaimed(time=max(self.now, state.time), epoch=state.epoch + 1, address="m:1")
        self.records.append(claim)
        self.brain = Brain(self.spec, fold([claim], state), self.now)
        self.send(Opened())

    def send(self, event: Event) -> bool:
        """False when it was refused."""
        self.sent.append(event)
        before = self.state
        try:
            decisions = self.brain.handle(event, self.now)
        except Refused:
            assert self.state is before, "who is refused changes nothing"
            return False
        fresh = [decision.record for decision in decisions if isinstance(decision, WriteRecord)]
        self.manifests += [decision for decision in decisions if isinstance(decision, WriteManifest)]
        self.records += fresh
        self._batch = len(fresh)
        self.states.append((len(self.records), self.state))
        self._check(before)
        return True

    def _check(self, before: State) -> None:
        state = self.state
        assert self.brain.reason
        assert state.conditions
        assert [c.holds for c in state.conditions] == [False] * (len(state.conditions) - 1) + [True]
        deadline = self.brain.next_deadline()
        assert deadline is None or deadline > max(self.now, state.time), "a deadline in the past fires forever"
        if state.phase is not JobPhase.ENDED:
            assert deadline is not None, "a job that has not ended looks again some time"
        for name, node in state.nodes.items():
            node_before = before.nodes.get(name)
            assert node_before is None or node.directive >= node_before.directive
            assert node_before is None or node.action == node_before.action or node.directive > node_before.directive

    def check_history(self) -> None:
        """The journal as a whole, and every prefix of it."""
        formed = [record for record in self.records if isinstance(record, RoundFormed)]
        assert [record.round.number for record in formed] == list(range(1, len(formed) + 1))
        assert [record.time for record in self.records] == sorted(record.time for record in self.records)
        replayed, at, deleted_places = State(), 0, set[tuple[int, int]]()
        state_by_position = dict(self.states)
        for position, record in enumerate(self.records):
            if position in state_by_position:
                assert replayed == state_by_position[position]
            match record:
                case RoundFormed():
                    self._check_round(replayed, record, deleted_places)
                case Forgotten():
                    deleted_places.update(record.places)
                    begun = replayed.round and replayed.round.restore
                    assert not begun or (begun.round, begun.iteration) not in record.places
                case ShardPersisted():
                    deleted_places.discard((record.holding.round, record.holding.iteration))
            replayed, at = fold([record], replayed), position + 1
        assert at == len(self.records)
        assert replayed == self.state

    def _check_round(self, before: State, record: RoundFormed, deleted_places: set[tuple[int, int]]) -> None:
        """`deleted_places`: what the store has no more."""
        names_seen = set()
        for role, role_spec in self.spec.roles.items():
            members = record.round.members[role]
            most = before.sizes.get(role, role_spec.nodes)
            assert role_spec.least <= len(members) <= most <= role_spec.most
            assert len(members) % role_spec.node_unit == 0
            for member in members:
                node = before.nodes[member.node]
                assert node.phase is NodePhase.WAITING
                assert not node.is_leaving
                assert node.host not in before.avoided
                names_seen.add(member.node)
        assert len(names_seen) == sum(map(len, record.round.members.values()))
        restore = record.round.restore
        if restore:
            assert {(s.round, s.iteration) for s in restore.sources} == {(restore.round, restore.iteration)}
            shards = restore.sources[0].shards
            assert {source.shard for source in restore.sources} == set(range(shards))
            assert not any(
                source.key and (source.round, source.iteration) in deleted_places for source in restore.sources
            )

    def names(self, *phases: NodePhase) -> list[str]:
        return sorted(node.name for node in self.state.nodes.values() if node.phase in phases)

    def everybody(self) -> list[str]:
        """Who may say something: the job's nodes, and where nodes come by themselves, those that may come."""
        if self.spec.placement is Placement.JOINED:
            return sorted({*self.state.nodes, *(f"n{number}" for number in range(5))})
        return sorted(self.state.nodes)

    def join(self, name: str, after_round: int | None = None, anew: bool = False) -> bool:
        """A node asks to be in the next round; `anew`: its agent is another process than before."""
        if anew:
            self.agents[name] = self.agents.get(name, 0) + 1
            self.held.pop(name, None)
            self.joins[name] = 0
        self.joins[name] = self.joins.get(name, 0) + 1
        node_before = self.state.nodes.get(name)
        role = node_before.role if node_before else "worker"
        at = 0 if anew else self.number if after_round is None else after_round
        address = f"{name}.{self.agents.get(name, 0)}:1"
        host = self.host_of.get(name, node_before.host if node_before else name)
        return self.send(
            Joined(
                Join(
                    name, role, host, 1, address, 29500, self.held.get(name, ()), at,
                    checked=self.checked.get(name, 1.0), ip=f"10.0.0.{len(name)}",
                    life=self.agents.get(name, 0), number=self.joins[name],
                )
            )
        )  # fmt: skip

    def join_all(self) -> None:
        """Every node that is asked for, or told to join again, joins; those that are told to test themselves do."""
        while waiting := self.names(*_TO_JOIN, NodePhase.CHECKING):
            before = self.state
            for name in waiting:
                if self.state.nodes[name].phase is NodePhase.CHECKING:
                    self.test(name)
                else:
                    self.join(name)
            if self.state is before:
                return

    def beat(self, name: str, iteration: int = 0, still_s: float = 0.0, **more: Any) -> None:
        life = self.agents.get(name, 0)
        beat = Heartbeat(name, self.number, iteration, still_s=still_s, moved=True, life=life, **more)
        self.send(HeartbeatSeen(beat))

    def pace(self, slow: str, part: SlowPart = SlowPart.CPU, iteration: int = 5) -> None:
        """Every running node sends a window; the others wait for that node's rank."""
        for name in self.names(NodePhase.RUNNING):
            own_s = 3.0 if name == slow else 1.0
            waits = own_s - 1.0 if part is SlowPart.CPU else 0.0
            pace = Pace(self.state.nodes[name].first_rank, 4, 50, 1 - own_s / 3.0, 3.0, cpu_wait_s=waits)
            self.beat(name, iteration, paces=(pace,))

    def dump(self, name: str) -> None:
        """The node has written its stacks as it was told."""
        node = self.state.nodes.get(name)
        self.send(StacksDumped(Dumped(name, self.number, node.directive if node else 0)))

    def test(self, name: str) -> None:
        """The node has tested itself as it was told."""
        node = self.state.nodes[name]
        problem = self.problems.get(node.host, "")
        self.send(NodeChecked(SelfTest(name, node.action_round, 0.5, problem)))

    def beat_all(self, iteration: int = 0, still_s: float = 0.0) -> None:
        for name in self.names(*JOINED):
            self.beat(name, iteration, still_s)

    def stage(self, iteration: int) -> None:
        """All running members stage the same iteration."""
        for name in self.names(NodePhase.RUNNING):
            self.held[name] = (Holding(self.number, iteration, node=name, address="a"),)
            self.beat(name, iteration)

    def exit(self, name: str, code: int, iteration: int = 3, error: str = "ValueError: bad", oom: bool = False) -> None:
        """A worker of the node dies."""
        self.send(WorkerExited(WorkerExit(name, self.number, 0, 0, code, iteration, error, 0.0, oom)))

    def disconnect(self, name: str, iteration: int = 3, round_: int | None = None) -> bool:
        """A worker of the node loses its connection to another rank, and lives."""
        error = "RuntimeError: Connection closed by peer [10.0.0.2]:4242"
        number = self.number if round_ is None else round_
        return self.send(RankDisconnected(Disconnected(name, number, 0, iteration, error)))

    def wait(self, seconds: float, beating: bool = True) -> None:
        """Let time pass, deadline by deadline; the agents beat unless they are silent."""
        until = self.now + seconds
        while True:
            deadline = self.brain.next_deadline()
            if deadline is None or deadline > until:
                break
            self.now = deadline
            if beating:
                self.beat_all()
            self.send(Tick())
        self.now = until
        if beating:
            self.beat_all()
        self.send(Tick())


def platform(roles: dict[str, RoleSpec] | None = None, **fields: object) -> JobSpec:
    """A job whose nodes are asked for."""
    return JobSpec("j", roles or {"worker": RoleSpec(3, 2)}, **fields)  # type: ignore[arg-type]


def by_themselves(roles: dict[str, RoleSpec] | None = None, **fields: object) -> JobSpec:
    """A job whose nodes come by themselves."""
    return platform(roles, placement=Placement.JOINED, **fields)
