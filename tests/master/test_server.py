"""The HTTP server before the endpoints: whatever bytes come, it answers the next who asks."""

import asyncio
import gzip
import logging
import socket
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.master.master import open_listener
from everstep.runtime.master.request_validation import LARGEST_BODY
from everstep.runtime.master.server import BODY_S, serving
from everstep.runtime.protocol.messages import Heartbeat
from tests.examples import examples
from tests.master.shell import TOKEN, Shell, TroubledStore

SPEC = JobSpec("j", {"worker": RoleSpec(1, 1)}, hosts="")
SECONDS = 60.0
BEAT = msgspec.json.encode(Heartbeat("worker-0-0", 0, telemetry=({"v": 1},)))


def head(*lines: str, verb: str = "heartbeat") -> bytes:
    fixed = (f"POST /v1/{verb} HTTP/1.1", "Host: m", f"Authorization: Bearer {TOKEN}", "Connection: close")
    return "\r\n".join((*fixed, *lines, "", "")).encode()


RIGHT = head(f"Content-Length: {len(BEAT)}") + BEAT


def serve(story: Callable[[int, Shell], Awaitable[None]], body_s: float = BODY_S) -> None:
    """The story with the port of a master on loopback."""

    async def run_story() -> None:
        shell = Shell(SPEC, TroubledStore())
        await shell.open()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with serving(shell.endpoints, listener, body_s):
                await story(listener.getsockname()[1], shell)
        await shell.close()

    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await run_story()

    asyncio.run(in_time())


async def answers_to(port: int, data: bytes, end: bool = False) -> bytes:
    """All that the server answers to these bytes; `end`: it is told that no more of them will come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def check_survived(
    port: int, shell: Shell, data: bytes, caplog: pytest.LogCaptureFixture, end: bool = False
) -> bytes:
    """The answer to these bytes; they have changed nothing, and the next who asks is answered."""
    before = shell.brain.core.state
    answer = await answers_to(port, data, end)
    assert shell.brain.core.state is before
    assert (await answers_to(port, RIGHT)).startswith(b"HTTP/1.1 200")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
    return answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head("Content-Length: five"), b"400"),
        (head("Transfer-Encoding: chunked") + b"zz\r\n", b"400"),
        (head(f"Content-Length: {LARGEST_BODY + 1}") + b" " * (LARGEST_BODY + 1), b"400"),
        (head("Content-Encoding: gzip", "Content-Length: 5") + b"abcde", b"400"),
        (head("X: " + "y" * 20_000, "Content-Length: 0"), b"400"),
        (head("Content-Length: 0", verb="nothing"), b"404"),
        (b"GET /v1/status HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n", b"401"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"400"),
    ],
    ids=["length", "chunk", "large", "not gzip", "header", "path", "no token", "TLS"],
)
def test_what_is_no_proper_request_is_answered_and_changes_nothing(
    data: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(port: int, shell: Shell) -> None:
        answer = await check_survived(port, shell, data, caplog)
        assert answer[8:13] == b" %b " % status, answer[:300]

    serve(story)


def test_a_body_that_ends_early_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story(port: int, shell: Shell) -> None:
        await check_survived(port, shell, RIGHT[:-5], caplog, end=True)

    serve(story)


def test_what_is_compressed_is_not_unpacked(caplog: pytest.LogCaptureFixture) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    data = head("Content-Encoding: gzip", f"Content-Length: {len(bomb)}") + bomb

    async def story(port: int, shell: Shell) -> None:
        assert (await check_survived(port, shell, data, caplog)).startswith(b"HTTP/1.1 400")

    serve(story)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.lists(st.binary(max_size=200) | st.binary(max_size=100).map(lambda b: RIGHT[:-9] + b), max_size=8))
def test_no_bytes_stop_the_server(noise: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    async def story(port: int, shell: Shell) -> None:
        for data in noise:
            await check_survived(port, shell, data, caplog, end=True)

    serve(story)


def test_a_body_that_stays_away_is_refused() -> None:
    async def story(port: int, shell: Shell) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(RIGHT[:-5])
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        await reader.readuntil(b"the body did not come within 0.1 s")
        writer.close()

    serve(story, body_s=0.1)


def test_whoever_connected_and_vanished_is_found_out_within_minutes() -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            idle, every, times = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert idle + every * times <= 120
