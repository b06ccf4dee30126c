"""The check over HTTP: tokens, malformed messages, and what a node's link makes of each answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.errors import (
    CoordinatorLostError,
    NoQuorumError,
    RefusedError,
    TakenNameError,
    UnknownNodeError,
)
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.http_link import HttpLink, serve_coordinator
from everstep.runtime.diagnosis.messages import Arrive, Ask, Over, Stage, StageResult, Together, Work
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import TokenGate, listen

ONE = Arrive("node-1", "b", "127.0.0.1")


class Served:
    """A coordinator behind a port, and ways to reach it."""

    def __init__(self, http: aiohttp.ClientSession, port: int, coordinator: Coordinator, gate: TokenGate) -> None:
        self.http, self.coordinator, self.gate = http, coordinator, gate
        self.place = f"127.0.0.1:{port}"

    def link(self, token: str = "secret") -> HttpLink:
        return HttpLink(self.http, self.place, Credentials(token), patience_s=0.0, arrival_s=0.0)

    async def post(self, path: str, body: bytes, token: str = "secret") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.http.post(f"http://{self.place}/v1/check/{path}", data=body, headers=headers) as answer:
            return answer.status, await answer.text()

    async def until_waiting(self, node: str) -> None:
        async with asyncio.timeout(60):
            while not self.coordinator.is_waiting(node):
                await self.post("order", b"")


@asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[Served]:
    coordinator, gate, listener = Coordinator(**options), TokenGate(Credentials("secret")), listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with serve_coordinator(coordinator, listener, gate), aiohttp.ClientSession() as http:
        yield Served(http, port, coordinator, gate)


def test_a_wrong_token_is_refused_and_counted_and_changes_nothing() -> None:
    async def story() -> None:
        async with serve() as end:
            assert (await end.post("arrive", b'{"node":"node-1","host":"b","address":"1.2.3.4"}', "wrong"))[0] == 401
            with pytest.raises(RefusedError, match="does not have this check's token"):
                await end.link("wrong").arrive(ONE)
            assert end.gate.refused == 2
            assert await end.coordinator.wait_for_arrivals({"node-1"}, 0.0) == {"node-1"}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("arrive", b'{"node": 7, "host": "b", "address": "x"}', "Arrive: Expected `str`, got `int` - at `$.node`"),
        ("order", b'{"seen": 1}', "Ask: Object missing required field `node`"),
        ("told", b"no JSON", "StageResult: JSON is malformed"),
        ("told", b"x" * (1 << 17), "StageResult: the body has more than 65536 bytes"),
    ],
)
def test_a_malformed_message_is_400_with_the_name_of_the_field(path: str, body: bytes, words: str) -> None:
    async def story() -> None:
        async with serve() as end:
            status, text = await end.post(path, body)
            assert status == 400
            assert words in text

    asyncio.run(story())


def test_a_node_that_never_arrived_is_told_to_arrive() -> None:
    async def story() -> None:
        async with serve() as end:
            with pytest.raises(UnknownNodeError, match="node node-1 has not arrived here"):
                await end.link().order(Ask("node-1"))

    asyncio.run(story())


def test_a_second_node_of_the_same_rank_is_refused_while_the_first_one_lives() -> None:
    async def story() -> None:
        async with serve() as end:
            await end.link().arrive(ONE)
            waiting = asyncio.create_task(end.link().order(Ask("node-1")))
            await end.until_waiting("node-1")
            with pytest.raises(TakenNameError, match="node-1 is here already, on b"):
                await end.link().arrive(Arrive("node-1", "c", "127.0.0.2"))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(story())


def test_a_check_that_is_called_off_is_told_to_who_waits() -> None:
    async def story() -> None:
        async with serve() as end:
            await end.link().arrive(ONE)
            waiting = asyncio.create_task(end.link().order(Ask("node-1")))
            await end.until_waiting("node-1")
            end.coordinator.call_off("1 of 4 nodes came")
            with pytest.raises(NoQuorumError, match="1 of 4 nodes came"):
                await waiting

    asyncio.run(story())


def test_a_coordinator_that_does_not_answer_is_lost() -> None:
    async def story() -> None:
        async with aiohttp.ClientSession() as http:
            link = HttpLink(http, "127.0.0.1:1", Credentials("secret"), patience_s=0.0, arrival_s=0.0)
            with pytest.raises(CoordinatorLostError, match=r"127\.0\.0\.1:1 does not answer"):
                await link.arrive(ONE)

    asyncio.run(story())


def test_orders_and_measurements_travel_whole() -> None:
    async def story() -> None:
        async with serve(timeout_s=40.0) as end:
            nodes = ["node-0", "node-1"]
            for node in nodes:
                await end.link().arrive(Arrive(node, f"host of {node}", "127.0.0.1"))
            checking = asyncio.create_task(end.coordinator.check(nodes))

            async def take_part(node: str) -> Over:
                link, last_number = end.link(), 0
                while True:
                    order = await link.order(Ask(node, last_number))
                    assert order is not None
                    last_number = order.number
                    measurement = Measurement(node, "", 0.5, 0.01)
                    match order:
                        case Work():
                            await link.report(StageResult(node, order.round, Stage.ALONE, measurement, "127.0.0.1:9"))
                        case Together():
                            assert (order.store, order.world, order.timeout_s) == ("127.0.0.1:9", 2, 10.0)
                            measurement = Measurement(node, "", 0.5, 0.01, 0.1)
                            await link.report(StageResult(node, order.round, Stage.TOGETHER, measurement))
                        case Over():
                            return order

            overs = await asyncio.gather(*(take_part(node) for node in nodes))
            assert [over.verdict.host for over in overs] == ["host of node-0", "host of node-1"]
            assert [verdict.health for verdict in await checking] == ["healthy", "healthy"]
            assert await end.coordinator.wait_until_dismissed(nodes, 0.0) == set()

    asyncio.run(story())
