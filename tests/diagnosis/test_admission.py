"""Nodes of a job come, are checked, stand by as partners and go, in any order: nobody waits for who is not there."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.agent.ports import free_port
from everstep.runtime.diagnosis.admission import PARTNER_S, Admission, Gate, serve_admission
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.http_link import HttpLink
from everstep.runtime.diagnosis.messages import Arrive, Ask, Over, Stage, StageResult, Together, Work
from everstep.runtime.diagnosis.verdicts import Health, Verdict
from everstep.runtime.net.tls import Credentials


def verdict(node: str, health: Health = Health.HEALTHY) -> Verdict:
    return Verdict(node, f"host of {node}", health, "so it is", health in (Health.FAULTY, Health.UNDECIDED), 0.5)


def test_who_comes_first_is_checked_alone_and_later_ones_with_those_that_were_healthy() -> None:
    gate = Gate()
    assert gate.next_nodes([], 0.0) == ([], [])
    assert gate.next_nodes(["a", "b"], 1.0) == (["a", "b"], [])
    gate.record_verdicts([verdict("a"), verdict("b")])
    assert gate.next_nodes(["a", "b"], 2.0) == ([], [])
    assert gate.next_nodes(["a", "b", "c"], 3.0) == (["c"], ["a", "b"])


def test_a_partner_that_failed_is_asked_no_more_and_is_not_checked_again() -> None:
    gate = Gate()
    gate.record_verdicts([verdict("a"), verdict("b")])
    gate.record_verdicts([verdict("c", Health.FAULTY), verdict("a", Health.FAULTY), verdict("b", Health.STRAGGLER)])
    assert gate.next_nodes(["a", "b", "c"], 0.0) == ([], [])
    assert gate.next_nodes(["a", "b", "d"], 0.0) == (["d"], ["b"])


def test_a_new_node_waits_a_while_for_a_partner_and_then_is_checked_alone() -> None:
    gate = Gate()
    gate.record_verdicts([verdict("a")])
    assert gate.next_nodes(["b"], 10.0) == ([], [])
    assert gate.next_nodes(["b"], 10.0 + PARTNER_S) == (["b"], [])


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["comes", "goes", *Health])), max_size=40))
def test_nobody_is_checked_twice_and_nobody_is_left_unchecked_whoever_comes_goes_and_fails(
    events: list[tuple[str, str]],
) -> None:
    gate, here, checked, fit = Gate(), dict.fromkeys("a"), [], set()
    for at, (node, what) in enumerate(events):
        if what == "comes":
            here[node] = None
        elif what == "goes":
            here.pop(node, None)
        for now in (at * 100.0, at * 100.0 + PARTNER_S):
            fresh, partners = gate.next_nodes(here, now)
            assert set(partners) <= fit & here.keys()
            if fresh:
                health = Health(what) if what in list(Health) else Health.HEALTHY
                gate.record_verdicts([verdict(name, health) for name in [*fresh, *partners]])
                unfit = {*fresh, *partners} if health in (Health.FAULTY, Health.UNDECIDED) else set()
                fit = (fit | set(fresh)) - unfit
                checked += fresh
        assert set(here) <= set(checked)
    assert len(checked) == len(set(checked))


class Node:
    """One that takes part over HTTP as an agent does, with what it measures written down."""

    def __init__(self, name: str, port: int, died: bool = False) -> None:
        self.me = Arrive(name, f"host of {name}", "127.0.0.1")
        self.died = died
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.may_stand_by, self.stands_by = asyncio.Event(), asyncio.Event()
        self._port = port
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as http:
            link = HttpLink(http, f"127.0.0.1:{self._port}", Credentials("secret"))
            await link.arrive(self.me)
            self.verdict.set_result((await self._check(link)).verdict)
            await self.may_stand_by.wait()
            while True:
                await link.arrive(self.me)
                self.stands_by.set()
                await self._check(link)

    async def _check(self, link: HttpLink) -> Over:
        last_number = 0
        while True:
            order = await link.order(Ask(self.me.node, last_number))
            last_number = last_number if order is None else order.number
            name, host = self.me.node, self.me.host
            if isinstance(order, Over):
                return order
            if isinstance(order, Work):
                measurement = Measurement(name, host, 0.5, 0.01, died=self.died)
                await link.report(StageResult(name, order.round, Stage.ALONE, measurement, "127.0.0.1:9"))
            elif isinstance(order, Together):
                measurement = Measurement(name, host, 0.5, 0.01, 0.1)
                await link.report(StageResult(name, order.round, Stage.TOGETHER, measurement))

    async def disconnect(self) -> None:
        """As if it were killed: its connection ends."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def admission(nodes: int, say: Callable[[str], None]) -> AsyncIterator[int]:
    port = free_port(random.Random())
    async with serve_admission(Admission(nodes, 1, 60.0, 60.0), "127.0.0.1", port, Credentials("secret"), say):
        yield port


def test_a_node_that_is_gone_is_nobodys_partner_and_a_replacement_is_checked_with_one_that_lives() -> None:
    lines_said: list[str] = []

    async def story() -> None:
        async with admission(2, lines_said.append) as port, asyncio.timeout(120):
            lost_node, other = Node("worker-1-0", port), Node("worker-0-0", port)
            for node in (lost_node, other):
                assert not (await node.verdict).avoid
                node.may_stand_by.set()
                await node.stands_by.wait()
            await lost_node.disconnect()
            for launch, died in ((1, True), (2, False)):
                node = Node(f"worker-1-{launch}", port, died)
                assert (await node.verdict).avoid is died
                await node.disconnect()
            await other.disconnect()

    asyncio.run(story())
    rounds = [line for line in lines_said if line.startswith("Round")]
    assert [sorted(re.findall(r"worker-\d-\d", line)) for line in rounds] == [
        ["worker-0-0", "worker-1-0"],
        ["worker-0-0", "worker-1-1"],
        ["worker-0-0", "worker-1-2"],
    ]
