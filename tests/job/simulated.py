"""A whole job in virtual time: masters on a compare-and-set journal, agents, a platform, and a network that drops,
repeats, delays without bound and reorders what they say. From `Plan.fair_at` on nothing is dropped and nothing fails
any more; old copies still arrive.

Masters run the brain, agents run `runtime.agent.talk`; around these is what `runtime.master` and `runtime.agent` do:
long polls that are answered when what they wait for is journaled, requests that are repeated until a master answers,
one join at a time, faults told before the next join, heartbeats beside it all. A round trains only while all its
members are in it.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runtime.job import seats
from runtime.job.brain import Brain, Journal, Refused, UnknownNode, WriteManifest
from runtime.job.events import (
    DeletionDue,
    Event,
    HeartbeatSeen,
    Joined,
    LeaveAnnounced,
    ManifestWritten,
    NodeCreated,
    NodeFinishedRound,
    NodeGone,
    Opened,
    ScaleAsked,
    ShardStored,
    StacksDumped,
    StopAsked,
    Tick,
    WorkerExited,
)
from runtime.job.messages import Action, Heartbeat, Join
from runtime.job.records import (
    JobResult,
    MasterClaimed,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Record,
    RoundBroken,
    RoundFormed,
)
from runtime.job.sizes import wanted
from runtime.job.spec import JobSpec, Placement
from runtime.job.state import State, begun_from, fold
from tests.job.simulated_agent import Agent

JOIN_POLL_S, HEARTBEAT_POLL_S, LOOK_AGAIN_S = 20.0, 5.0, 5.0
LIMIT_S = 6_000.0
"""From the fair moment on: more than all patience of a job together."""


_STIRRING = (NodeJoined, NodeLost, NodeReleased, RoundBroken, RoundFormed)


class Violation(AssertionError):  # noqa: N818 (a name that reads well in `raise`)
    """What must never happen."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to the job at a time."""

    at: float
    kind: str
    who: float
    """From 0 to 1: which of those whom it may befall."""
    how: float


@dataclass(frozen=True)
class Plan:
    """One sequence. The same plan gives the same course."""

    seed: str
    spec: JobSpec
    faults: tuple[Fault, ...]
    fair_at: float
    iterations: int
    sharded: bool
    has_beacon: bool


class Segments:
    """The journal: a segment is made by one `create`."""

    def __init__(self) -> None:
        self.segments: list[list[Record]] = []
        self.states: dict[int, State] = {}
        """What a master took the first n segments to lead to."""
        self.masters: list[Master] = []
        """Who claimed the job, in this order."""

    def create(self, number: int, records: list[Record]) -> bool:
        if number != len(self.segments):
            return False
        self.segments.append(records)
        return True


class Master:
    """One process with a brain. Dead or fenced, it says nothing more."""

    def __init__(self, sim: "Simulation", skew: float) -> None:
        journal = sim.journal
        self.sim, self.alive, self.frozen_until, self.skew = sim, True, 0.0, skew
        state = fold(record for segment in journal.segments for record in segment)
        claim = MasterClaimed(time=max(sim.now + skew, state.time), epoch=state.epoch + 1, address="m:1")
        journal.create(len(journal.segments), [claim])
        journal.masters.append(self)
        self.number, self.state = len(journal.segments), fold([claim], state)
        self.brain = Brain(sim.plan.spec, self.state, sim.now + skew)
        self.epoch = claim.epoch
        self._batch: list[Record] = []
        self._manifests: list[WriteManifest] = []
        self._decided = self._durable = 0
        self._writing: tuple[int, list[Record], State, int, list[WriteManifest]] | None = None
        self._waiters: list[tuple[int, Callable[[State], bool], float, Callable[[], None]]] = []
        self._alarm = float("inf")
        self._seen: set[str] = set()
        self.reconcile()
        self.feed(Opened())
        self._look()

    def feed(self, event: Event) -> None:
        """Raises Refused."""
        for decision in self.brain.handle(event, self.sim.now + self.skew):
            if isinstance(decision, Journal):
                self._batch.append(decision.record)
                self._decided += 1
            else:
                self._manifests.append(decision)
        self._write()
        deadline = self.brain.next_deadline()
        if deadline is not None and (at := max(deadline - self.skew, self.sim.now) + 1e-6) < self._alarm:
            self._alarm = at
            self.sim.at(at - self.sim.now, self, self._tick)

    def _tick(self) -> None:
        self._alarm = float("inf")
        self.feed(Tick())

    def _write(self) -> None:
        if self._writing is None and (self._batch or self._manifests):
            self._writing = self.number, self._batch, self.brain.state, self._decided, self._manifests
            self._batch, self._manifests = [], []
            self.sim.at(self.sim.latency(), self, self._written)

    def _written(self, done: bool = False) -> None:
        assert self._writing
        number, records, state, decided, manifests = self._writing
        if records and not done and not self.sim.journal.create(number, records):
            self.alive = False  # Fenced.
            return
        self._writing = None
        self.number += bool(records)
        self.state, self._durable = state, decided
        self.sim.journal.states[self.number] = state
        self._answer()
        for asked in manifests:
            self.sim.at(self.sim.latency(), self, self._commit, asked)
        if records:
            self.reconcile()
        if any(isinstance(record, _STIRRING) for record in records):
            self.sim.stir()
        self._write()

    def stop(self, chance: float) -> None:
        """It dies. What it was writing may have become durable."""
        self.alive = False
        if self._writing and chance < 0.5 and self._writing[1]:
            self.sim.journal.create(self._writing[0], self._writing[1])

    def _commit(self, asked: WriteManifest) -> None:
        place = asked.round, asked.iteration
        there = [(h.shard, h.shards) for h in asked.shards if (*place, h.shard, h.shards) in self.sim.store]
        if len(there) < len(asked.shards):
            return  # Deleted, for a newer one is there.
        if [shard for shard, _ in there] != list(range(len(there))) or {of for _, of in there} != {len(there)}:
            raise Violation(f"a commit of {place} with the shards {there}")
        self.sim.committed.add(place)
        self.feed(ManifestWritten(*place, "manifest"))
        whole = sorted(place for place, known in self.state.checkpoints.items() if known.manifest)
        if len(whole) > 2:
            begun = begun_from(self.state)
            self.feed(DeletionDue(tuple(old for old in whole[:-2] if old != begun)))
            self._when(lambda _: True, self._tidy)

    def _tidy(self) -> None:
        kept, newest = self.state.checkpoints, max(self.sim.committed)
        self.sim.store = {key for key in self.sim.store if key[:2] in kept or key[:2] > newest}

    def reconcile(self) -> None:
        """The platform's nodes become those that are wanted."""
        sim, spec = self.sim, self.sim.plan.spec
        if spec.placement is Placement.JOINED:
            return
        observed = {name for name, agent in sim.agents.items() if agent.exists}
        self._seen |= observed
        want = {node.name: node for node in wanted(self.state, spec, sim.now + self.skew)}
        for name, node in want.items():
            if name in self._seen:
                continue
            if not node.create:
                self.feed(NodeGone(name, "it ended while no master looked"))
            elif self.confirm():
                self._seen.add(name)
                sim.start_agent(name, node.role, node.host)
                self.feed(NodeCreated(name))
        for name in sorted(observed - want.keys()):
            if name in self.state.nodes and self.confirm():
                sim.agents[name].end(143)

    def confirm(self) -> bool:
        """Is it still the job's master? One that is not ends."""
        self.alive &= self.number + (self._writing is not None) >= len(self.sim.journal.segments)
        return self.alive

    def _look(self) -> None:
        if self.confirm():
            self.reconcile()
            self.sim.at(LOOK_AGAIN_S, self, self._look)

    def take(self, message: Any, answer: Callable[[int, Any], None]) -> None:
        """A request arrives."""
        try:
            match message:
                case Join():
                    self.feed(Joined(message))
                    self._poll(message.node, self._joined(message), JOIN_POLL_S, lambda: self._seat(message, answer))
                case Heartbeat():
                    self.feed(HeartbeatSeen(message))
                    limit = 0.0 if message.telemetry else HEARTBEAT_POLL_S
                    told = self._directive(message)
                    self._poll(message.node, told, limit, lambda: self._direct(message, answer), durable=False)
                case _:
                    self.feed(_EVENTS[type(message).__name__](message))
                    self._when(lambda _: True, lambda: answer(200, None))
        except UnknownNode:
            answer(409, None)
        except Refused:
            answer(400, None)

    def _joined(self, join: Join) -> Callable[[State], bool]:
        return lambda state: (
            _leaves(state, join) or seats.seat_for(state, join) is not None or seats.is_spent(state, join)
        )

    def _seat(self, join: Join, answer: Callable[[int, Any], None]) -> None:
        seat = seats.seat_for(self.state, join)
        answer(200 if seat else 409 if _leaves(self.state, join) else 204, seat)

    def _directive(self, beat: Heartbeat) -> Callable[[State], bool]:
        def ready(state: State) -> bool:
            told = seats.directive(state, beat.node, beat.life)
            return told is not None and (told.number > beat.seen or told.life > beat.life)

        return ready

    def _direct(self, beat: Heartbeat, answer: Callable[[int, Any], None]) -> None:
        told = seats.directive(self.state, beat.node, beat.life)
        answer(200 if told else 204, told)

    def _poll(
        self, node: str, ready: Callable[[State], bool], limit_s: float, then: Callable[[], None], durable: bool = True
    ) -> None:
        self._when(ready, then, limit_s, self._decided if durable else 0)

    def _when(
        self, ready: Callable[[State], bool], then: Callable[[], None], limit_s: float = 1e9, after: int | None = None
    ) -> None:
        """Once all that was decided by now (or by `after`) is durable, and `ready`, or the time is over."""
        after = self._decided if after is None else after
        if self._durable >= after and (limit_s <= 0 or ready(self.state)):
            then()
            return
        self._waiters.append((after, ready, self.sim.now + limit_s, then))
        if limit_s < 1e9:
            self.sim.at(limit_s, self, self._answer)

    def _answer(self) -> None:
        now, state, durable = self.sim.now, self.state, self._durable
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if durable >= waiter[0] and (now >= waiter[2] or waiter[1](state)):
                waiter[3]()
            else:
                self._waiters.append(waiter)


_EVENTS: dict[str, Callable[[Any], Event]] = {
    "WorkerExit": WorkerExited,
    "Finished": NodeFinishedRound,
    "Persisted": ShardStored,
    "Leaving": LeaveAnnounced,
    "Dumped": StacksDumped,
}


def _leaves(state: State, join: Join) -> bool:
    told = seats.directive(state, join.node, join.life)
    return told is not None and told.action is Action.LEAVE


class Simulation:
    """Runs one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.now = plan, 1000.0
        self.random = random.Random(plan.seed)
        self.journal = Segments()
        self.agents: dict[str, Agent] = {}
        """The newest of each name."""
        self.store: set[tuple[int, int, int, int]] = set()
        """(Round, iteration, shard, shards) of each object."""
        self.committed: set[tuple[int, int]] = set()
        self.rounds: dict[int, set[Agent]] = {}
        """Whose workers run in which round."""
        self.trained: set[int] = set()
        self.fired: dict[str, int] = {}
        """How often each kind of fault happened, and what the network did."""
        self._heap: list[tuple[float, int, Any, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._limbo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """Messages and copies that arrive when it suits nobody."""
        self._reopened = False

    @property
    def fair(self) -> bool:
        """Does nothing fail any more?"""
        return self.now >= self.plan.fair_at

    @property
    def masters(self) -> list[Master]:
        """Those that live."""
        return [master for master in self.journal.masters if master.alive]

    def at(self, delay: float, owner: Any, call: Callable[..., None], *arguments: Any) -> None:
        """Call that later, if the owner (None: nobody's) lives then; while it is frozen the call waits."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay, self._count, owner, call, arguments))

    def latency(self) -> float:
        """Of a message or a write that arrives."""
        return self.random.random() * (0.02 if self.fair or self.random.random() < 0.9 else 5.0)

    def carry(self, owner: Any, call: Callable[..., None], *arguments: Any) -> None:
        """A message on its way: it arrives, or not, or twice, whenever."""
        chance = 1.0 if self.fair else self.random.random()
        if chance < 0.05:
            self.count("dropped")
            return
        if chance < 0.2:
            self.count("repeated" if chance > 0.1 else "delayed")
            if owner is None and self.random.random() < 0.5:
                self._limbo.append((call, arguments))
            else:
                self.at(self.random.expovariate(1 / 80), owner, call, *arguments)
            if chance < 0.1:
                return
        self.at(self.latency(), owner, call, *arguments)

    def stir(self) -> None:
        """Something has happened that old messages may not know of: some of them arrive just now."""
        for _ in range(min(len(self._limbo), self.random.choice((0, 1, 1, 3)))):
            call, arguments = self._limbo.pop(self.random.randrange(len(self._limbo)))
            self.at(self.random.random() * 0.1, None, call, *arguments)

    def count(self, what: str) -> None:
        """It happened once more."""
        self.fired[what] = self.fired.get(what, 0) + 1

    def run(self) -> State:
        """The state in which the job ended. Raises Violation."""
        self.start_master()
        if self.plan.spec.placement is Placement.JOINED:
            for number in range(sum(role.most for role in self.plan.spec.roles.values())):
                self.at(self.random.random() * 20, None, self.start_agent, f"n{number}", "worker", f"n{number}")
        for fault in self.plan.faults:
            self.at(fault.at - self.now, None, self._befall, fault)
        self.at(self.plan.fair_at - self.now, None, self._become_fair)
        limit = self.plan.fair_at + LIMIT_S
        while self._heap:
            time, _, owner, call, arguments = heapq.heappop(self._heap)
            if owner is not None:
                if not owner.alive:
                    continue
                if owner.frozen_until > time and not self.fair:
                    thaws = min(owner.frozen_until, self.plan.fair_at)
                    self.at(thaws - self.now, owner, call, *arguments)
                    continue
            self.now = max(self.now, time)
            if self.now > limit:
                raise Violation(self._stuck())
            call(*arguments)
            if isinstance(owner, Master):
                if owner.state.ended and owner.alive and self._over(owner):
                    return owner.state
                if not owner.alive and not self.masters:
                    self.at(self.random.random() * 30, None, self.start_master)
        raise Violation(f"nothing happens any more; {self._stuck()}")

    def _over(self, master: Master) -> bool:
        """Is the job over? One that ended badly before the network was fair is taken up again once."""
        assert master.state.ended
        if self.fair or self._reopened or master.state.ended.result is JobResult.SUCCEEDED:
            return True
        self._reopened = True
        self.count("reopened")
        master.alive = False
        for agent in self.agents.values():
            agent.end(0)
        self.at(5.0, None, self.start_master)
        if self.plan.spec.placement is Placement.JOINED:
            for name in sorted(self.agents):
                self.at(6.0 + self.random.random(), None, self.start_agent, name, "worker", name)
        return False

    def _stuck(self) -> str:
        state = fold(record for segment in self.journal.segments for record in segment)
        there = [node for node in state.nodes.values() if node.phase not in ("lost", "released")]
        agents = {node.name: self.agents[node.name].tell() for node in there if node.name in self.agents}
        nodes = "; ".join(f"{node.name} {node.phase} in {node.round}, {agents.get(node.name)}" for node in there)
        return (
            f"the job neither ends nor trains on: {state.phase}, {state.reason}; {nodes}; {len(self.masters)} masters"
        )

    def start_master(self) -> None:
        """A master claims the job, whether or not another one believes that it still is."""
        skew = 0.0 if self.fair else self.random.choice((0.0, 0.0, -400.0, 50.0, 3000.0))
        Master(self, skew)

    def start_agent(self, name: str, role: str, host: str) -> None:
        """A node begins; the clock by which its life is numbered may have been set back."""
        if self.masters and self.masters[-1].state.ended and self.fair:
            return
        clock = self.now + (0 if self.random.random() < 0.8 else self.random.uniform(-500, 500))
        self.agents[name] = Agent(self, name, role, host, int(clock * 1000))

    def gone(self, agent: Agent, code: int) -> None:
        """A node's process has ended: its platform tells, or its supervisor starts another."""
        if self.plan.spec.placement is Placement.PLATFORM:
            for master in self.masters:
                self.at(self.random.random(), master, master.feed, NodeGone(agent.name, "ended", code))
        elif code not in (0, 143):
            self.at(1 + self.random.random() * 20, None, self._restart, agent)

    def _restart(self, agent: Agent) -> None:
        if self.agents[agent.name] is agent:
            self.start_agent(agent.name, agent.role, agent.host)

    def _become_fair(self) -> None:
        for agent in self.agents.values():
            agent.hung = False
        if not self.masters:
            self.start_master()

    def _befall(self, fault: Fault) -> None:
        if self.fair:
            return
        living = sorted((a for a in self.agents.values() if a.alive), key=lambda agent: agent.name)
        agent = living[int(fault.who * len(living))] if living else None
        masters = self.masters
        master = masters[int(fault.who * len(masters))] if masters else None
        if _FAULTS[fault.kind](self, fault, agent, master):
            self.count(fault.kind)


def _on_agent(do: Callable[[Agent, float], None]) -> Any:
    def befall(sim: Simulation, fault: Fault, agent: Agent | None, master: Master | None) -> bool:
        if agent:
            do(agent, fault.how)
        return agent is not None

    return befall


def _on_master(do: Callable[[Master, float], None]) -> Any:
    def befall(sim: Simulation, fault: Fault, agent: Agent | None, master: Master | None) -> bool:
        if master:
            do(master, fault.how)
            if not sim.masters:
                sim.at(fault.how * 60, None, sim.start_master)
        return master is not None

    return befall


def _second(sim: Simulation, *_: Any) -> bool:
    sim.start_master()
    return True


def _scale(master: Master, how: float) -> None:
    spec = master.sim.plan.spec
    role = list(spec.roles)[int(how * 7) % len(spec.roles)]
    asked = spec.roles[role]
    _try(master, ScaleAsked(role, asked.least + int(how * (asked.most - asked.least + 1))))


def _try(master: Master, event: Event) -> None:
    with suppress(Refused):
        master.feed(event)


def _freeze(who: Any, how: float) -> None:
    who.frozen_until = who.sim.now + how**4 * 1000


def _jump(master: Master, how: float) -> None:
    master.skew += (how - 0.4) * 1000


_CODES = (-9, 1, -6, 201, 247, 137, 76)
_FAULTS: dict[str, Callable[..., bool]] = {
    "worker": _on_agent(lambda agent, how: agent.fault(_CODES[int(how * len(_CODES))])),
    "agent": _on_agent(lambda agent, how: agent.end(137)),
    "machine": _on_agent(lambda agent, how: agent.vanish()),
    "frozen agent": _on_agent(_freeze),
    "hang": _on_agent(lambda agent, how: agent.hang()),
    "notice": _on_agent(lambda agent, how: agent.notice(how * 60)),
    "master": _on_master(lambda master, how: master.stop(how)),
    "frozen master": _on_master(_freeze),
    "jump": _on_master(_jump),
    "scale": _on_master(_scale),
    "stop": _on_master(lambda master, how: _try(master, StopAsked("told to stop")) if how < 0.2 else None),
    "second master": _second,
}
KINDS = tuple(_FAULTS)


def check_replay(sim: Simulation, chance: random.Random) -> None:
    """The journal, cut anywhere, leads to the state that its master had there. Raises Violation."""
    cuts = sorted(chance.sample(sorted(sim.journal.states), min(3, len(sim.journal.states))))
    for cut, state in zip(cuts, _states(sim.journal.segments, cuts), strict=True):
        if state != sim.journal.states[cut]:
            raise Violation(f"{cut} segments lead to another state than their master had")


def _states(segments: list[list[Record]], cuts: list[int]) -> Iterator[State]:
    state, done = State(), 0
    for cut in cuts:
        state, done = fold((record for segment in segments[done:cut] for record in segment), state), cut
        yield state
