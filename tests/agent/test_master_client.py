"""What counts as a sign of a master's life."""

import asyncio
import itertools
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from everstep.runtime.agent import client as client_module
from everstep.runtime.agent.client import MasterClient, NoPlace
from everstep.runtime.protocol.messages import JOB_HEADER, Ack, Action, Directive, Heartbeat, WorkerExit

CHANCE = random.Random(0)


def test_a_master_that_does_not_know_this_node_yet_is_alive(masters: Any) -> None:
    async def story() -> None:
        headers = {"Authorization": "Bearer secret", JOB_HEADER: "mine"}
        async with masters(job="another") as master, aiohttp.ClientSession(headers=headers) as session:
            client = MasterClient(master.url, lambda: None, CHANCE, print)
            client.session, client.answered_at = session, 0.0
            with pytest.raises(NoPlace):
                await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
            assert client.answered_at > 0.0
            assert not client.met

    asyncio.run(story())


@asynccontextmanager
async def answering(path: str, statuses: list[int], reply: msgspec.Struct) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A master's address, where that is answered with these statuses, one after the other; and what it was told."""
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.read())
        return web.Response(status=statuses.pop(0), body=msgspec.json.encode(reply))

    app = web.Application()
    app.router.add_post(f"/v1/{path}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", bodies
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("crowd", [1, 1_000_000], ids=["one node", "a crowd"])
def test_a_crowd_that_misses_its_master_does_not_look_for_the_next_one_all_at_once(crowd: int) -> None:
    async def story() -> None:
        looked: list[int] = []
        statuses = [200, 503, 503, 503, 200]
        directive = Directive(1, 0, Action.CONTINUE)
        async with answering("heartbeat", statuses, directive) as (address, _), aiohttp.ClientSession() as session:
            client = MasterClient(f"http://{address}", lambda: looked.append(1), CHANCE, print)
            client.session, client.crowd = session, crowd
            await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
            await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
        assert statuses == []
        assert bool(looked) is (crowd == 1)

    asyncio.run(story())


def test_a_crowd_that_has_heard_its_master_long_ago_does_not_look_at_once_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A heartbeat's answer may be seconds old, which is longer than the period of the looks: of all agents at once."""
    now = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: next(now)))

    async def story() -> None:
        looked: list[int] = []
        statuses, directive = [200, 503, 200], Directive(1, 0, Action.CONTINUE)
        async with answering("heartbeat", statuses, directive) as (address, _), aiohttp.ClientSession() as session:
            client = MasterClient(f"http://{address}", lambda: looked.append(1), CHANCE, print)
            client.session, client.crowd = session, 10_000_000
            await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
            await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
        assert statuses == []
        assert not looked

    asyncio.run(story())


def test_a_store_that_cannot_be_read_while_no_master_answers_is_told_once() -> None:
    def find() -> tuple[int, str] | None:
        raise OSError("s3://b: cannot be\nreached")

    async def story() -> None:
        said: list[str] = []
        statuses, directive = [200, 503, 503, 503, 503, 200], Directive(1, 0, Action.CONTINUE)
        async with answering("heartbeat", statuses, directive) as (address, _), aiohttp.ClientSession() as session:
            client = MasterClient(f"http://{address}", find, CHANCE, said.append)
            client.session = session
            await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
            await client.send_heartbeat(lambda: Heartbeat("worker-0", 0))
        assert statuses == []
        lost, unreadable, found = said
        assert "does not answer heartbeat" in lost
        assert unreadable.endswith("cannot be read either; waits for both: s3://b: cannot be reached")
        assert found == f"the master at {address} answers"

    asyncio.run(story())


def test_each_attempt_to_tell_a_fault_says_anew_how_long_ago_it_was() -> None:
    async def story() -> None:
        ages = iter([1.0, 2.0, 3.0])
        async with answering("fault", [503, 503, 200], Ack(1)) as (address, bodies), aiohttp.ClientSession() as session:
            client = MasterClient(f"http://{address}", lambda: None, CHANCE, print)
            client.session = session
            await client.report_fault(lambda: WorkerExit("worker-0", 1, 0, 0, 1, 5, ago_s=next(ages)))
        assert [msgspec.json.decode(body, type=WorkerExit).ago_s for body in bodies] == [1.0, 2.0, 3.0]

    asyncio.run(story())


def test_a_request_that_a_dead_machine_leaves_open_is_sent_to_the_next_master_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "_LATE", 0.0)
    monkeypatch.setattr(client_module, "_LOOK_S", 0.01)

    async def story() -> None:
        ages, looks = iter([1.0, 2.0, 3.0]), itertools.count()
        directive = Directive(2, 0, Action.CONTINUE)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with (
                answering("heartbeat", [200], directive) as (address, bodies),
                aiohttp.ClientSession() as session,
            ):
                place = f"127.0.0.1:{silent.getsockname()[1]}"
                client = MasterClient(
                    f"http://{place}", lambda: (2, address) if next(looks) > 2 else (1, place), CHANCE, print
                )
                client.session = session
                async with asyncio.timeout(60):
                    answer = await client.send_heartbeat(lambda: Heartbeat("a", 1, silent_s=next(ages)))
        assert answer == directive
        (body,) = bodies
        assert msgspec.json.decode(body, type=Heartbeat).silent_s == 2.0, "it says what is so now"

    asyncio.run(story())


def test_a_master_that_vanishes_with_its_last_word_does_not_keep_a_node_that_leaves() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with aiohttp.ClientSession() as session, asyncio.timeout(60):
                client = MasterClient(f"http://127.0.0.1:{silent.getsockname()[1]}", lambda: None, CHANCE, print)
                client.session = session
                assert await client.job_end("worker-0", seconds=0.2) is None

    asyncio.run(story())
