"""The agent's own HTTP server: other agents read the shards in this node's memory, and have theirs copied to it.

GET /v1/shards/<round>/<iteration>/<shard>: the bytes (Range is understood); 404 when they are not held (any more),
401 without the job's token.
POST /v1/copies with a Holding: fetch that shard into this node's memory; 204 when it is there, 503 and why when not.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import msgspec
from aiohttp import web

from runtime.agent.keeping import Keeper
from runtime.job.messages import Holding

_CHUNK = 1 << 20
_WAITED_FOR = 64 << 10
"""A write of more bytes waits until they are sent, one of fewer may leave them in a buffer."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def application(keeper: Keeper, token: str, threads: Executor) -> web.Application:
    """The server of one agent; what blocks runs in `threads`."""
    bearer = f"Bearer {token}".encode()

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
            with keeper.open_shard(*place) as data:
                return await _send(request, data)
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

    app = web.Application(middlewares=[guard])
    shards = r"/v1/shards/{round:\d+}/{iteration:\d+}/{shard:\d+}"
    app.add_routes([web.get(shards, shard), web.post("/v1/copies", copy)])
    return app


async def _send(request: web.Request, shard: memoryview) -> web.StreamResponse:
    start, end, status = 0, len(shard), 200
    if found := _RANGE.fullmatch(request.headers.get("Range", "")):
        start, status = int(found[1]), 206
        end = min(int(found[2]) + 1 if found[2] else end, end)
        if start >= end:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(shard)}"})
    response = web.StreamResponse(status=status)
    response.content_type = "application/octet-stream"
    response.content_length = end - start
    if status == 206:
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(shard)}"
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer hung up")
    # Each write waits until all of it is the kernel's: the bytes go out from where they are, and the slot, which is
    # unpinned when we return, is not read any more. A short end is copied, for nobody waits for it.
    transport.set_write_buffer_limits(high=0)
    try:
        for at in range(start, end, _CHUNK):
            chunk = shard[at : min(at + _CHUNK, end)]
            await response.write(chunk if len(chunk) > _WAITED_FOR else bytes(chunk))
        await response.write_eof()
    finally:
        transport.set_write_buffer_limits()
    return response
