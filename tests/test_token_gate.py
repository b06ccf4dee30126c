"""The gate of every server: a stranger gets little room and little time, and whoever shows the token is let in."""

import asyncio
import errno
import gc
import itertools
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from everstep.runtime.net import token_gate as gates
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import MOST_ACCEPTS, TELL_S, RateLimitedLog, TokenGate, listen, server_of
from tests.credentials import credentials
from tests.harness import PATIENCE_S
from tests.hostile import AT_TLS, KINDS, Crowd
from tests.master.shell import TroubledStore, in_virtual_time

SECONDS = 120.0
RIGHT = b"GET / HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer t\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK"
IN_CLEAR = Credentials("t")
Story = Callable[["Served"], Awaitable[None]]


class Served:
    """A server behind a gate, and ways to reach it."""

    def __init__(self, gate: TokenGate, port: int, lines: list[str], client: ssl.SSLContext | None) -> None:
        self.gate, self.port, self.lines = gate, port, lines
        """Told to people."""
        self._client = client

    @asynccontextmanager
    async def connection(self, says: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._client)
        try:
            writer.write(says)
            yield reader, writer
        finally:
            writer.transport.abort()

    async def is_answered(self) -> bool:
        """Is somebody new with the right token?"""
        with suppress(ConnectionError, ssl.SSLError):
            async with self.connection(RIGHT) as (reader, _):
                return (await reader.readline()).startswith(ANSWER)
        return False

    async def until_answered(self) -> None:
        """As an agent, which asks again: where a gate waits for some tenths of a second, a busy machine is too late."""
        while not await self.is_answered():
            pass


def serve(story: Story, strangers: int = 256, head_s: float = 10.0, credentials_used: Credentials = IN_CLEAR) -> None:
    async def run_story() -> None:
        async def handle(request: web.BaseRequest) -> web.Response:
            is_admitted = gate.admits(request)
            response = web.Response(status=200 if is_admitted else 401)
            if not is_admitted:
                response.force_close()
            return response

        lines: list[str] = []
        gate = TokenGate(credentials_used, strangers=strangers, head_s=head_s, say=lines.append)
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        async with asyncio.timeout(SECONDS), gate.serve(server_of(handle), listener):
            await story(Served(gate, port, lines, credentials_used.client))

    asyncio.run(run_story())


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """This process may have so many."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def filled_gaps() -> Iterator[int]:
    """No descriptor is free below those in use: yields how many are used. A limit counts numbers, not descriptors."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield fillers[-1] + 1
    finally:
        for filler in fillers:
            os.close(filler)


def _is_used_up(descriptors: list[int]) -> bool:
    try:
        descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno == errno.EMFILE
    return False


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    descriptors: list[int] = []
    try:
        while not _is_used_up(descriptors):
            pass
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_does_not_show_the_token_is_sent_away_in_time(kind: str) -> None:
    async def story(end: Served) -> None:
        crowd = Crowd({kind: KINDS[kind]})
        await crowd.attack(end.port, count=5, at_once=5)
        assert crowd.came[kind] == 5
        await end.until_answered()

    serve(story, head_s=0.3)


def test_whoever_does_not_shake_hands_is_sent_away_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def story(end: Served) -> None:
        crowd = Crowd(AT_TLS)
        await crowd.attack(end.port, count=5 * len(AT_TLS), at_once=5 * len(AT_TLS))
        assert set(crowd.came.values()) == {5}
        await end.until_answered()

    serve(story, head_s=1.0, credentials_used=credentials())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text


def test_whoever_has_shaken_hands_and_does_not_show_the_token_is_sent_away_in_time() -> None:
    async def story(end: Served) -> None:
        async with AsyncExitStack() as stack:
            shaken = [await stack.enter_async_context(end.connection(says)) for says in KINDS.values()]
            for reader, _ in shaken:
                await reader.read()  # Until the end.
        await end.until_answered()

    serve(story, head_s=2.0, credentials_used=credentials())


def test_a_connection_that_has_shown_the_token_by_tls_stays() -> None:
    async def story(end: Served) -> None:
        async with end.connection(RIGHT) as (reader, writer), end.connection() as (stranger, _):
            await reader.readuntil(b"\r\n\r\n")
            assert await stranger.read() == b""  # The stranger, who came later, has been sent away.
            writer.write(RIGHT)
            assert (await reader.readline()).startswith(ANSWER)

    serve(story, head_s=2.0, credentials_used=credentials())


async def answered_beside(crowd: Crowd, end: Served, count: int) -> int:
    """How often who has the token is answered while so many of the crowd come."""
    attack, answered = asyncio.create_task(crowd.attack(end.port, count=count, at_once=150)), 0
    while not attack.done():
        answered += await end.is_answered()
    await attack
    assert sum(crowd.came.values()) == count
    return answered


def test_a_crowd_at_a_port_for_tls_keeps_nobody_out() -> None:
    async def story(end: Served) -> None:
        answered = await answered_beside(Crowd(AT_TLS), end, 300)
        assert answered > 3
        assert len(end.lines) <= 2

    serve(story, strangers=8 * MOST_ACCEPTS, head_s=2.0, credentials_used=credentials())


def test_a_connection_that_has_shown_the_token_stays() -> None:
    async def story(end: Served) -> None:
        async with end.connection(RIGHT) as (reader, writer), end.connection() as (stranger, _):
            await reader.readuntil(b"\r\n\r\n")
            assert await stranger.read() == b""  # The stranger, who came later, has been sent away.
            writer.write(RIGHT)
            assert (await reader.readline()).startswith(ANSWER)

    serve(story, head_s=0.3)


def test_one_stranger_too_many_sends_the_oldest_away() -> None:
    async def story(end: Served) -> None:
        async with end.connection() as (oldest, _), end.connection() as (second, _), end.connection() as (newest, _):
            assert await oldest.read() == b""
            assert await end.is_answered()
            assert await second.read() == b""  # It gave way to the one that was answered.
            assert not newest.at_eof()
            assert end.lines == ["a connection was closed: more than 2 had not shown this job's token"]

    serve(story, strangers=2)


def test_a_crowd_that_fills_the_door_again_and_again_keeps_nobody_out() -> None:
    """The oldest stranger has had its turn: while a crowd is accepted, whoever says the token at once is answered."""

    async def story(end: Served) -> None:
        answered = await answered_beside(Crowd(), end, 600)
        assert answered > 10
        assert len(end.lines) <= 2

    serve(story, strangers=8 * MOST_ACCEPTS, head_s=1.0)


def test_descriptors_are_kept_for_the_jobs_own_work() -> None:
    async def story(end: Served) -> None:
        with filled_gaps() as used, descriptors(used + 280):
            async with end.connection(RIGHT) as (reader, writer):
                await reader.readuntil(b"\r\n\r\n")
                crowd = [await asyncio.open_connection("127.0.0.1", end.port) for _ in range(120)]
                assert await end.is_answered()  # All before it have been accepted.
                own = [os.open(os.devnull, os.O_RDONLY) for _ in range(3 * MOST_ACCEPTS)]
                writer.write(RIGHT)
                assert (await reader.readline()).startswith(ANSWER)
                ends = [asyncio.create_task(stranger.read()) for stranger, _ in crowd]
                await asyncio.wait(ends, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)  # It is seen later.
                sent_away = sum(stranger.at_eof() for stranger, _ in crowd)
                assert 0 < sent_away < 120
                for task in ends:
                    task.cancel()
                for descriptor in own:
                    os.close(descriptor)
                for _, stranger in crowd:
                    stranger.transport.abort()

    serve(story, strangers=400)


def test_without_a_descriptor_left_strangers_make_room() -> None:
    async def story(end: Served) -> None:
        with descriptors(400), socket.socket() as late:
            async with end.connection() as (stranger, _):
                await asyncio.sleep(0)
                assert await end.is_answered()  # The stranger is in.
                late.setblocking(False)
                with suppress(BlockingIOError):
                    late.connect(("127.0.0.1", end.port))
                with no_descriptor_left():
                    assert await stranger.read() == b""
                assert end.lines == [f"no connection can be accepted: {os.strerror(errno.EMFILE)}"]
                await asyncio.get_running_loop().sock_sendall(late, RIGHT)
                assert (await asyncio.get_running_loop().sock_recv(late, 100)).startswith(ANSWER)

    serve(story)


def test_without_a_descriptor_left_nothing_ends_and_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_SHORT_S", 0.01)

    async def story(end: Served) -> None:
        tries: list[float] = []
        log_lines = end.gate._seldom.log
        enough = asyncio.Event()

        def tell(what: str) -> None:
            tries.append(asyncio.get_running_loop().time())
            log_lines(what)
            if len(tries) == 5:
                enough.set()

        monkeypatch.setattr(end.gate._seldom, "log", tell)
        loop = asyncio.get_running_loop()
        with descriptors(400), socket.socket() as waits:
            waits.setblocking(False)
            with suppress(BlockingIOError):
                waits.connect(("127.0.0.1", end.port))
            with no_descriptor_left():
                await enough.wait()
            await loop.sock_sendall(waits, RIGHT)
            assert (await loop.sock_recv(waits, 100)).startswith(ANSWER)
        assert end.lines == [f"no connection can be accepted: {os.strerror(errno.EMFILE)}"]
        assert all(later - earlier >= 0.009 for earlier, later in itertools.pairwise(tries))

    serve(story)


def test_what_happens_often_is_told_at_once_and_then_with_its_number() -> None:
    async def story() -> None:
        lines: list[str] = []
        seldom = RateLimitedLog(lines.append, every_s=1000.0)
        for _ in range(5):
            seldom.log("again")
        assert lines == ["again"]
        seldom.close()
        assert lines == ["again", "again (4 more times)"]

    asyncio.run(story())


def test_what_goes_on_is_told_again_after_each_minute_and_at_once_after_a_quiet_one() -> None:
    async def story() -> None:
        lines: list[str] = []
        seldom = RateLimitedLog(lines.append)
        for _ in range(3):
            seldom.log("again")
        await asyncio.sleep(TELL_S + 1)
        assert lines == ["again", "again (2 more times)"]
        seldom.log("again")
        assert len(lines) == 2
        await asyncio.sleep(TELL_S)
        assert lines[2:] == ["again (1 more times)"]
        await asyncio.sleep(TELL_S)
        seldom.log("again")
        assert lines[3:] == ["again"]
        seldom.close()
        assert len(lines) == 4

    in_virtual_time(TroubledStore(), story)


def test_garbage_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(end: Served) -> None:
        async with end.connection(KINDS["garbage"]) as (reader, _):
            assert b" 400 " in await reader.readline()
        async with end.connection(b"GET / HTTP/1.1\r\nHost: m\r\n" + b"X: y\r\n" * 100 + b"\r\n") as (reader, _):
            assert b" 400 " in await reader.readline()

    serve(story)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text


def test_every_address_of_the_machine_is_listened_at_only_when_asked_for(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as near, listen("", 0) as far:
        assert near.getsockname()[0] == "127.0.0.1"
        assert far.getsockname()[0] in ("::", "0.0.0.0")
        with socket.create_connection(("127.0.0.2", far.getsockname()[1])):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", near.getsockname()[1]))
