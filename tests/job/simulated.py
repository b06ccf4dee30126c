"""A whole job in virtual time: masters on a compare-and-set journal, agents, a platform, and a network that drops,
repeats, delays without bound and reorders what they say. From `Plan.fair_at` on nothing is dropped and nothing fails
any more; old copies still arrive.

Masters run the brain, agents run `runtime.agent.master_dialogue`. Around these stands what `runtime.master` and
`runtime.agent` do: long polls that are answered when what they wait for is journaled, requests that are repeated until
a master answers, one join at a time, faults reported before the next join, heartbeats beside it all. A round trains
only while all its members are in it.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from everstep.runtime.job.brain import Refused
from everstep.runtime.job.events import Event, NodeGone, ScaleRequested, StopRequested
from everstep.runtime.job.fold import fold
from everstep.runtime.job.reasons import JobResult
from everstep.runtime.job.records import Record
from everstep.runtime.job.spec import JobSpec, Placement
from everstep.runtime.job.state import State
from tests.job.simulated_agent import Agent
from tests.job.simulated_master import Master, Segments, Violation

LIMIT_S = 6_000.0
"""From the fair moment on: more than all patience of a job together."""


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

    def on_process_end(self, agent: Agent, code: int) -> None:
        """A node's process has ended: its platform tells, or its supervisor starts another."""
        if self.plan.spec.placement is Placement.PLATFORM:
            for master in self.masters:
                self.at(self.random.random(), master, master.feed_soon, NodeGone(agent.name, "ended", code))
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
    role_spec = spec.roles[role]
    _try(master, ScaleRequested(role, role_spec.least + int(how * (role_spec.most - role_spec.least + 1))))


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
    "network": _on_agent(lambda agent, how: agent.disconnect()),
    "slander": _on_agent(lambda agent, how: agent.slander(how)),
    "slow": _on_agent(lambda agent, how: agent.slow(how)),
    "notice": _on_agent(lambda agent, how: agent.notice(how * 60)),
    "master": _on_master(lambda master, how: master.stop(how)),
    "frozen master": _on_master(_freeze),
    "jump": _on_master(_jump),
    "scale": _on_master(_scale),
    "stop": _on_master(lambda master, how: _try(master, StopRequested("told to stop")) if how < 0.2 else None),
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
    state, records_folded = State(), 0
    for cut in cuts:
        state, records_folded = (
            fold((record for segment in segments[records_folded:cut] for record in segment), state),
            cut,
        )
        yield state
