"""The agent's own server: a shard is pinned while a peer reads it, and no longer."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiohttp import ClientSession, web

from everstep.runtime.agent import peer_server
from everstep.runtime.agent.peer_server import application
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import TokenGate, application_of, listen
from everstep.runtime.protocol.holdings import CopyRequest, Holding
from tests.credentials import credentials

SIZE = 64 << 20
"""More than the kernel buffers between two ends of a connection."""


BOTH = pytest.mark.parametrize("credentials_used", [Credentials("t"), credentials()], ids=["clear", "TLS"])


class OneShard:
    """What the server asks of a keeper."""

    def __init__(self) -> None:
        self.pins, self.why = 0, ""
        self.pinned, self.unpinned = asyncio.Event(), asyncio.Event()

    @contextmanager
    def open_shard(self, *_: int) -> Iterator[memoryview]:
        """Zeros."""
        self.pins += 1
        self.pinned.set()
        try:
            yield memoryview(bytes(SIZE))
        except ConnectionResetError as error:
            self.why = str(error)
            raise
        finally:
            self.pins -= 1
            self.unpinned.set()


def _connect(place: tuple[str, int], tls: ssl.SSLContext | None) -> socket.socket:
    wire = socket.create_connection(place)
    return tls.wrap_socket(wire) if tls else wire


@asynccontextmanager
async def server_and_stalled_peer(
    keeper: OneShard, stall_s: float, credentials_used: Credentials
) -> AsyncIterator[tuple[web.AppRunner, socket.socket]]:
    """The server, and a peer that was promised the shard and has read nothing."""
    gate, listener = TokenGate(credentials_used), listen("127.0.0.1", 0)
    with ThreadPoolExecutor(1) as threads:
        runner = application_of(application(cast(Any, keeper), gate, threads, AsyncMock(), stall_s))
        async with gate.serve(runner, listener):
            with await asyncio.to_thread(_connect, listener.getsockname(), credentials_used.client) as peer:
                peer.sendall(b"GET /v1/shards/1/1/0 HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer t\r\n\r\n")
                async with asyncio.timeout(60):
                    await keeper.pinned.wait()
                    yield runner, peer


@BOTH
def test_a_peer_that_stops_reading_does_not_pin_a_slot_for_ever(credentials_used: Credentials) -> None:
    async def story() -> None:
        keeper = OneShard()
        async with server_and_stalled_peer(keeper, 0.2, credentials_used):
            await keeper.unpinned.wait()
        assert (keeper.pins, keeper.why) == (0, "the peer has taken nothing for 0.2 s")

    asyncio.run(story())


@pytest.mark.parametrize("who", ["the peer", "the server"])
@BOTH
def test_whoever_hangs_up_pins_no_slot(who: str, credentials_used: Credentials) -> None:
    async def story() -> None:
        keeper = OneShard()
        async with server_and_stalled_peer(keeper, 60, credentials_used) as (runner, peer):
            if who == "the peer":
                peer.close()
            else:
                await runner.cleanup()
            await keeper.unpinned.wait()
        assert keeper.pins == 0

    asyncio.run(story())


@BOTH
def test_a_reader_waits_for_no_other(credentials_used: Credentials) -> None:
    async def story() -> None:
        keeper = OneShard()
        async with server_and_stalled_peer(keeper, 60, credentials_used) as (_, peer):
            host, port = peer.getpeername()
            url = f"{credentials_used.scheme}://{host}:{port}/v1/shards/1/1/0"
            async with ClientSession(headers=credentials_used.headers) as session:
                for _ in range(2):  # On one connection.
                    async with session.get(url, ssl=credentials_used.client or True) as answer:
                        assert len(await answer.read()) == SIZE

    asyncio.run(story())


class Connection(socket.socket):
    """One whose round trip is as long as a test says."""

    round_trip_us = 0

    def getsockopt(self, level: int, name: int, size: int = 0) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        socket_info = super().getsockopt(level, name, size)
        return socket_info[:-4] + struct.pack("=I", self.round_trip_us) if name == socket.TCP_INFO else socket_info


@pytest.mark.parametrize(("round_trip_us", "little"), [(5, True), (200, False)])
def test_only_what_goes_to_a_reader_on_this_machine_is_little_buffered(round_trip_us: int, little: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as waits, socket.create_connection(waits.getsockname()) as peer:
        accepted, _ = waits.accept()
        with Connection(fileno=accepted.detach()) as to:
            to.round_trip_us = round_trip_us
            before = to.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            peer_server._send_pieces(to, iter([b"all"]), 60)
            assert peer.recv(10) == b"all"
            assert (to.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < min(before, 1 << 19)) == little


class Copies:
    """A keeper that keeps a copy when the test says so."""

    def __init__(self, error: str = "") -> None:
        self.error, self.done = error, threading.Event()

    def copy_shard(self, request: CopyRequest, on_progress: Callable[[], None]) -> None:
        on_progress()
        assert self.done.wait(60)
        if self.error:
            raise RuntimeError(self.error)


@pytest.mark.parametrize("error", ["", "no room"])
def test_who_asks_for_a_copy_hears_that_it_gets_on_and_how_it_ended(error: str) -> None:
    async def story() -> None:
        keeper = Copies(error)
        gate, listener = TokenGate(Credentials("t")), listen("127.0.0.1", 0)
        with ThreadPoolExecutor(1) as threads:
            runner = application_of(application(cast(Any, keeper), gate, threads, AsyncMock()))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/copies"
            body, headers = msgspec.json.encode(CopyRequest(Holding(1, 1))), {"Authorization": "Bearer t"}
            async with gate.serve(runner, listener), asyncio.timeout(60), ClientSession(headers=headers) as session:
                answer = await session.post(url, data=body)
                assert await answer.content.readexactly(1) == b"."
                keeper.done.set()
                assert (await answer.read()).decode() == (error or "held")

    asyncio.run(story())
