"""The agent's own HTTP server: other agents read the shards in this node's memory, and have theirs copied to it.

GET /v1/shards/<round>/<iteration>/<shard>: the bytes (Range is understood); 404 when they are not held (any more),
401 without the job's token.
POST /v1/copies with a Holding: fetch that shard into this node's memory. The answer begins at once, has a dot whenever
that gets on, and ends with "held", or with why it is not.
"""

import asyncio
import itertools
import os
import re
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
from aiohttp import web

from everstep.runtime.net.door import BadBody, Door, read_body
from everstep.runtime.net.tls_transport import TlsTransport
from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.protocol.messages import Holding

SENDERS = 32
"""Readers that are sent to at once; others wait."""
_DRAIN_POLL_S = 0.001
_CHUNK_BYTES = 4 << 20
"""Bytes; about what a socket buffers."""
_TLS_CHUNK_BYTES = 256 << 10
"""Bytes that are encrypted before they are sent: both are in the core's cache."""
_LOCAL_RTT_US = 20
"""A round trip within a machine takes 5, in the nearest network more than this."""
_LOCAL_BUFFER_BYTES = 128 << 10
"""Bytes that a socket may buffer then: a reader finds them in the core's cache, in which megabytes have no room (here
0.7 times as long for a GiB, digests checked, as two plain sockets take)."""
_MIN_RTT_AT, _MIN_RTT = 148, struct.Struct("=I")
"""Microseconds, in struct tcp_info of linux/tcp.h."""
STALL_S = 30.0
"""A peer that takes no chunk for so long is gone: the kernel alone would believe in it for a quarter of an hour, in
which the slot that it reads could not be written."""
_PROGRESS_INTERVAL_S = 0.5
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
Piece = memoryview | bytes


def application(keeper: Keeper, door: Door, threads: Executor, stall_s: float = STALL_S) -> web.Application:
    """The server of one agent, behind that door; what blocks runs in `threads`. A reader that takes nothing for
    `stall_s` is let go."""
    senders = ThreadPoolExecutor(SENDERS, "everstep-send")

    async def shard(request: web.Request) -> web.StreamResponse:
        place = [int(request.match_info[name]) for name in ("round", "iteration", "shard")]
        try:
            with keeper.open_shard(*place) as data:
                return await _send(request, data, senders, stall_s)
        except KeyError:
            text = "shard {2} of round {0}, iteration {1} is not held".format(*place)
            return web.Response(status=404, text=text)

    async def copy(request: web.Request) -> web.StreamResponse:
        try:
            source = msgspec.json.decode(await read_body(request), type=Holding)
        except (msgspec.DecodeError, BadBody) as error:
            return web.Response(status=400, text=f"not understood: {error}")
        return await _copy(request, threads, partial(keeper.keep, source))

    async def ends(_: web.Application) -> AsyncIterator[None]:
        yield
        senders.shutdown(wait=False)

    app = web.Application(middlewares=[door.guard("job", lambda why: web.Response(status=401, text=why))])
    app.cleanup_ctx.append(ends)
    shards = r"/v1/shards/{round:\d+}/{iteration:\d+}/{shard:\d+}"
    app.add_routes([web.get(shards, shard), web.post("/v1/copies", copy)])
    return app


async def _copy(
    request: web.Request, threads: Executor, keep: Callable[[Callable[[], None]], None]
) -> web.StreamResponse:
    """Keep a copy, and let who asked know at once, and as long as it gets on, that somebody is there."""
    response, moves, told = web.StreamResponse(), itertools.count(1), 0
    moved = 0

    def came() -> None:
        nonlocal moved
        moved = next(moves)

    work = asyncio.get_running_loop().run_in_executor(threads, keep, came)
    try:
        await response.prepare(request)
        while not (await asyncio.wait([work], timeout=_PROGRESS_INTERVAL_S))[0]:
            if moved != told:
                told = moved
                await response.write(b".")
    finally:
        await asyncio.wait([work])  # Who asked may have gone: what was begun ends by itself.
        error = work.exception()
    if error is not None and not isinstance(error, RuntimeError | OSError):
        raise error
    await response.write(str(error or "held").encode())
    await response.write_eof()
    return response


async def _send(request: web.Request, shard: memoryview, senders: Executor, stall_s: float) -> web.StreamResponse:
    """What the reader asked for of it, sent in a thread."""
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
    try:
        async with asyncio.timeout(stall_s):  # What was said before goes first.
            while transport.get_write_buffer_size():
                await asyncio.sleep(_DRAIN_POLL_S)
        with shard[start:end] as asked, _piece_source(transport) as pieces_of:
            await _send_in_thread(transport, pieces_of(asked), senders, stall_s)
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError(f"the peer has taken nothing for {stall_s:g} s") from None
    await response.write_eof()
    return response


@contextmanager
def _piece_source(transport: asyncio.Transport) -> Iterator[Callable[[memoryview], Iterator[Piece]]]:
    """How a thread gets what it must send by the transport's socket."""
    if not isinstance(transport, TlsTransport):
        yield partial(_cut, each=_CHUNK_BYTES)
        return
    with transport.lend_encryptor() as seal:
        yield lambda data: map(seal, _cut(data, _TLS_CHUNK_BYTES))


def _cut(data: memoryview, each: int) -> Iterator[memoryview]:
    for start in range(0, len(data), each):
        with data[start : start + each] as piece:
            yield piece


async def _send_in_thread(
    transport: asyncio.Transport, pieces: Iterator[Piece], senders: Executor, stall_s: float
) -> None:
    """Wait until a thread has sent them. Raises TimeoutError, OSError."""
    if transport.is_closing():
        raise ConnectionResetError("the peer hung up")
    # A socket of our own: the loop may close the transport's, and its number may be another file's then.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as own:
        sending = asyncio.get_running_loop().run_in_executor(senders, _send_pieces, own, pieces, stall_s)
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            with suppress(OSError):  # The peer hung up first.
                own.shutdown(socket.SHUT_RDWR)
            await asyncio.gather(sending, return_exceptions=True)  # It has the slot.
            raise


def _send_pieces(to: socket.socket, pieces: Iterator[Piece], stall_s: float) -> None:
    """All of them. Raises TimeoutError, OSError.

    By copies: sendfile(2) takes 4 KiB pages one by one, which costs several times as much (here 0.45 s a GiB against
    0.15 s), and what waited in the socket would be the slot's own bytes still.
    """
    _shrink_local_buffer(to)
    writable = select.poll()
    writable.register(to, select.POLLOUT)
    for piece in pieces:
        sent = 0
        while sent < len(piece):
            try:
                with memoryview(piece)[sent:] as rest:
                    sent += to.send(rest)
            except BlockingIOError:
                if not writable.poll(stall_s * 1000):
                    raise TimeoutError from None


def _shrink_local_buffer(to: socket.socket) -> None:
    """To a reader on this machine; a network needs what is on its way buffered."""
    told = to.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size)
    if len(told) == _MIN_RTT_AT + _MIN_RTT.size and _MIN_RTT.unpack_from(told, _MIN_RTT_AT)[0] <= _LOCAL_RTT_US:
        to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
