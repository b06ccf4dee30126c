"""Who stands in for a silent master, and when: agents in virtual time, on a network that the test breaks."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.master_watch import ALONE_S, TURN_S, MasterWatch, NextMaster
from everstep.runtime.agent.neighbours import AGAIN_S, LOOK_S, SILENT_S, STILL_S, NeighbourWatch, Questions
from everstep.runtime.agent.progress_monitor import Progress
from everstep.runtime.protocol.rounds import Neighbour
from tests.examples import examples
from tests.fake_agent import seat
from tests.master.shell import VirtualLoop, passes

OWN = "own:1"
"""Where the job's own master was."""
SLACK_S = 4 * LOOK_S + SILENT_S + AGAIN_S


@dataclass
class Job:
    """What all agents share: the journal's newest master, and who answers."""

    claims: list[str] = field(default_factory=lambda: [OWN])
    dead: set[str] = field(default_factory=set)
    """Addresses that give no answer, not even a refusal."""
    refusing: set[str] = field(default_factory=set)
    stood_in: list[tuple[float, str]] = field(default_factory=list)
    """(When, node)."""


class Network(Questions):
    """One agent's way to the others."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.cut_off: set[str] = set()
        """Addresses that this agent alone does not reach."""

    async def is_answered(self, whom: Neighbour, timeout_s: float, through: str = "") -> bool:
        unreached = self._job.dead | self.cut_off
        if whom.address in self._job.refusing and not through:
            return False
        if (through or whom.address) in unreached or (through and whom.address in self._job.dead | self._job.refusing):
            await passes(timeout_s)
            return False
        await passes(0.001)
        return True

    async def is_refused(self, address: str) -> bool:
        return address in self._job.refusing


class Client:
    """The part of a client that is needed here."""

    met, crowd = True, 1

    def __init__(self, job: Job) -> None:
        self._job = job
        self.known = job.claims[-1]
        self._answered_at = 0.0

    @property
    def silent_s(self) -> float:
        now = asyncio.get_running_loop().time()
        self._answered_at = now if self.known not in self._job.dead | self._job.refusing else self._answered_at
        return now - self._answered_at

    @property
    def netloc(self) -> str:
        return self.known

    async def look_for_master(self) -> bool:
        await passes(0.01)
        before, self.known = self.known, self._job.claims[-1]
        return before != self.known


class Agent:
    """A node with its two watches; its workers stand still when the test says so."""

    def __init__(self, name: str, job: Job, names: list[str], after_s: float) -> None:
        self.name, self.job = name, job
        self.still_since: float | None = None
        self.said: list[str] = []
        self.network, self.client = Network(job), Client(job)
        self.neighbours = NeighbourWatch(self.network, self._progress, lambda: False, lambda: None)
        self.neighbours.take_seat(seat(1, neighbours=tuple(Neighbour(n, f"{n}:1") for n in names if n != name)))
        self.watch = MasterWatch(
            name, self.network, self.neighbours, cast(MasterClient, self.client), NextMaster(self.serve, after_s),
            self.said.append,
        )  # fmt: skip

    def _progress(self) -> Progress:
        now = asyncio.get_running_loop().time()
        still_s = 0.0 if self.still_since is None else now - self.still_since
        return Progress(7, "", still_s, True, True)

    async def serve(self) -> None:
        await passes(0.2)
        address = f"{self.name}:{len(self.job.claims)}"
        self.job.claims.append(address)
        self.job.stood_in.append((asyncio.get_running_loop().time(), self.name))
        while self.job.claims[-1] == address:
            await passes(0.1)


def play(
    names: list[str], story: Callable[[Job, list[Agent]], Coroutine[Any, Any, None]], after_s: float = math.inf
) -> Job:
    """The story of agents whose neighbours have all answered once."""

    async def whole() -> None:
        agents = [Agent(name, job, names, after_s) for name in names]
        tasks = [asyncio.create_task(part()) for agent in agents for part in (agent.neighbours.run, agent.watch.run)]
        await passes(1)
        await story(job, agents)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    job = Job()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(lambda: 0.0)) as runner:
        runner.run(whole())
    return job


def lose(job: Job, agents: list[Agent], *addresses: str) -> float:
    """Nothing at these addresses answers any more, and the others stand still; the moment."""
    now = asyncio.get_running_loop().time()
    job.dead |= set(addresses)
    for agent in agents:
        if f"{agent.name}:1" in addresses:
            agent.watch = cast(Any, None)
        else:
            agent.still_since = now
    return now


def test_the_machine_of_master_and_node_is_lost_and_the_first_of_the_others_stands_in_at_once() -> None:
    moments = []

    async def story(job: Job, agents: list[Agent]) -> None:
        agents[0].network.cut_off = {"b:1", "c:1"}  # It is the lost one: it reaches nobody either.
        moments.append(lose(job, agents, OWN, "a:1"))
        await passes(20)

    job = play(["a", "b", "c"], story)
    (when, name), *others = job.stood_in
    assert (name, others) == ("b", [])
    assert when - moments[0] <= STILL_S + SILENT_S + 4 * LOOK_S


def test_a_master_that_alone_is_silent_has_more_time() -> None:
    moments = []

    async def story(job: Job, agents: list[Agent]) -> None:
        moments.append(lose(job, agents, OWN))
        await passes(60)

    job = play(["a", "b"], story)
    ((when, name),) = job.stood_in
    assert name == "a"
    assert ALONE_S <= when - moments[0] <= STILL_S + ALONE_S + SLACK_S


def test_a_machine_that_refuses_the_connection_is_not_lost() -> None:
    moments = []

    async def story(job: Job, agents: list[Agent]) -> None:
        job.refusing = {OWN}
        moments.append(lose(job, agents, "a:1"))
        await passes(60)

    job = play(["a", "b", "c"], story)
    assert job.stood_in[0][0] - moments[0] >= ALONE_S


@pytest.mark.parametrize("what", ["workers go on", "it answers again", "another has claimed"])
def test_nobody_stands_in_for_a_master_that_is_missed_for_a_moment_only(what: str) -> None:
    async def story(job: Job, agents: list[Agent]) -> None:
        lose(job, agents, OWN)
        await passes(STILL_S + SILENT_S + ALONE_S / 2)
        if what == "workers go on":
            for agent in agents:
                agent.still_since = None
        elif what == "it answers again":
            job.dead.clear()
        else:
            job.claims.append("next:1")
        await passes(60)

    assert play(["a", "b"], story).stood_in == []


def test_a_master_that_another_node_reaches_is_not_silent() -> None:
    async def story(job: Job, agents: list[Agent]) -> None:
        lose(job, agents)
        agents[0].network.cut_off = {OWN}
        await passes(60)

    assert play(["a", "b"], story).stood_in == []


def test_who_trains_does_not_miss_the_master() -> None:
    async def story(job: Job, agents: list[Agent]) -> None:
        job.dead = {OWN}
        await passes(60)

    assert play(["a", "b"], story).stood_in == []


def test_the_next_one_stands_in_for_the_one_that_was_lost_too() -> None:
    async def story(job: Job, agents: list[Agent]) -> None:
        agents[0].network.cut_off = {"b:1", "c:1"}
        lose(job, agents, OWN, "a:1")
        await passes(20)
        agents[1].network.cut_off = {"c:1"}
        lose(job, agents, "b:1", job.claims[-1])
        await passes(20)

    assert [name for _, name in play(["a", "b", "c"], story).stood_in] == ["b", "c"]


def test_who_trains_on_without_a_master_makes_the_next_one_after_a_while_where_nobody_else_does() -> None:
    moments = []

    async def story(job: Job, agents: list[Agent]) -> None:
        job.dead = {OWN}
        moments.append(asyncio.get_running_loop().time())
        await passes(100)

    job = play(["a", "b"], story, after_s=20.0)
    ((when, name),) = job.stood_in
    assert name == "a"
    assert 20.0 <= when - moments[0] <= 20.0 + SLACK_S


def test_a_next_master_that_fails_says_why_and_is_tried_again_later() -> None:
    async def story(job: Job, agents: list[Agent]) -> None:
        async def fail() -> None:
            raise OSError("the store\ncannot be reached")

        agent = agents[0]
        agent.watch._next = NextMaster(fail)
        lose(job, agents, OWN)
        await passes(STILL_S + ALONE_S + SLACK_S)
        assert agent.said == ["the next master cannot be here: the store cannot be reached"]
        agent.watch._next = NextMaster(agent.serve)
        await passes(60)

    assert [name for _, name in play(["a"], story).stood_in] == ["a"]


@settings(max_examples=examples(60))
@given(
    count=st.integers(2, 6),
    lost=st.sets(st.integers(0, 5), max_size=4),
    offsets=st.lists(st.floats(0, 2), min_size=6, max_size=6),
)
def test_whoever_is_lost_with_the_master_one_after_the_other_stands_in_and_somebody_does(
    count: int, lost: set[int], offsets: list[float]
) -> None:
    """Liveness, and no two at once but for the time that a claim takes."""
    names = [f"worker-{number}-0" for number in range(count)]

    async def story(job: Job, agents: list[Agent]) -> None:
        gone = [agent for number, agent in enumerate(agents) if number in lost]
        for agent in gone:
            agent.network.cut_off = {OWN, *(f"{name}:1" for name in names)}
        moment = lose(job, agents, OWN, *(f"{agent.name}:1" for agent in gone))
        for agent, offset in zip(agents, offsets, strict=False):
            if agent not in gone:
                agent.still_since = moment + offset
        await passes(60)

    job = play(names, story)
    left = [name for number, name in enumerate(names) if number not in lost]
    stood_in = [name for _, name in job.stood_in]
    assert bool(stood_in) == bool(left)
    assert set(stood_in) <= set(left)
    assert all(after - before < 2 * TURN_S + SLACK_S for (before, _), (after, _) in pairwise(job.stood_in))
    assert len(stood_in) <= 2
