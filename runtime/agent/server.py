"""The agent's own HTTP server: other agents read the shards in this node's memory, and have theirs copied to it.

GET /v1/shards/<round>/<iteration>/<shard>: the bytes (Range is understood); 404 when they are not held (any more),
401 without the job's token.
POST /v1/copies with a Holding: fetch that shard into this node's memory; 204 when it is there, 503 and why when not.
"""

import asyncio
import hmac
import os
import re
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress

import msgspec
from aiohttp import web

from runtime.agent.keeping import Keeper, Stretch
from runtime.job.messages import Holding

SENDERS = 32
"""Readers that are sent to at once; others wait."""
_SOON_S = 0.001
STALL_S = 30.0
"""A peer that takes no chunk for so long is gone: the kernel alone would believe in it for a quarter of an hour, in
which the slot that it reads could not be written."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def application(keeper: Keeper, token: str, threads: Executor, stall_s: float = STALL_S) -> web.Application:
    """The server of one agent; what blocks runs in `threads`. A reader that takes nothing for `stall_s` is let go."""
    bearer = f"Bearer {token}".encode()
    senders = ThreadPoolExecutor(SENDERS, "everstep-send")

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, bearer):
            return web.Response(status=401, text="the Authorization header has not this job's token")
        return await handler(request)

    async def shard(request: web.Request) -> web.StreamResponse:
        place = [int(request.match_info[name]) for name in ("round", "iteration", "shard")]
        try:
            with keeper.open_shard(*place) as stretch:
                return await _send(request, stretch, senders, stall_s)
        except KeyError:
            text = "shard {2} of round {0}, iteration {1} is not held".format(*place)
            return web.Response(status=404, text=text)

    async def copy(request: web.Request) -> web.Response:
        try:
            source = msgspec.json.decode(await request.read(), type=Holding)
            await asyncio.get_running_loop().run_in_executor(threads, keeper.keep, source)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=f"not understood: {error}")
        except (RuntimeError, OSError) as error:
            return web.Response(status=503, text=str(error))
        return web.Response(status=204)

    async def ends(_: web.Application) -> AsyncIterator[None]:
        yield
        senders.shutdown(wait=False)

    app = web.Application(middlewares=[guard])
    app.cleanup_ctx.append(ends)
    shards = r"/v1/shards/{round:\d+}/{iteration:\d+}/{shard:\d+}"
    app.add_routes([web.get(shards, shard), web.post("/v1/copies", copy)])
    return app


async def _send(request: web.Request, shard: Stretch, senders: Executor, stall_s: float) -> web.StreamResponse:
    """The bytes go out by sendfile(2), never through this process, each reader's in a thread. Those in the sockets'
    buffers are still the slot's own when this returns: a reader that a new state overtakes finds digests that do not
    match, and asks elsewhere."""
    start, end, status = 0, shard.size, 200
    if found := _RANGE.fullmatch(request.headers.get("Range", "")):
        start, status = int(found[1]), 206
        end = min(int(found[2]) + 1 if found[2] else end, end)
        if start >= end:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{shard.size}"})
    response = web.StreamResponse(status=status)
    response.content_type = "application/octet-stream"
    response.content_length = end - start
    if status == 206:
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{shard.size}"
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer hung up")
    try:
        async with asyncio.timeout(stall_s):  # What was said before goes first.
            while transport.get_write_buffer_size():
                await asyncio.sleep(_SOON_S)
        await _sent(transport, shard, start, end, senders, stall_s)
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError(f"the peer has taken nothing for {stall_s:g} s") from None
    await response.write_eof()
    return response


async def _sent(
    transport: asyncio.Transport, shard: Stretch, start: int, end: int, senders: Executor, stall_s: float
) -> None:
    """Wait until a thread has sent those bytes. Raises TimeoutError, OSError."""
    if transport.is_closing():
        raise ConnectionResetError("the peer hung up")
    # A socket of our own: the loop may close the transport's, and its number may be another file's then.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as own:
        sending = asyncio.get_running_loop().run_in_executor(senders, _sendfile, own, shard, start, end, stall_s)
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            with suppress(OSError):  # The peer hung up first.
                own.shutdown(socket.SHUT_RDWR)
            await asyncio.gather(sending, return_exceptions=True)  # It has the slot.
            raise


def _sendfile(to: socket.socket, shard: Stretch, start: int, end: int, stall_s: float) -> None:
    """Those bytes. Raises TimeoutError, OSError."""
    writable = select.poll()
    writable.register(to, select.POLLOUT)
    while start < end:
        try:
            sent = os.sendfile(to.fileno(), shard.file.fileno(), shard.offset + start, end - start)
        except BlockingIOError:
            if not writable.poll(stall_s * 1000):
                raise TimeoutError from None
            continue
        if not sent:
            raise OSError(f"a slot ends at byte {start} of {end}")
        start += sent
