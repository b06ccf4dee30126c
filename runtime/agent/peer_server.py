"""The agent's HTTP server for its peers: they read shards from this node's memory, and ask it to copy theirs.

GET /v1/shards/<round>/<iteration>/<shard>: the bytes (Range is supported); 404 if they are not in memory, 401 without
the job's token.
POST /v1/copies with a CopyRequest: fetch that shard into this node's memory. The answer begins at once, has a dot for
progress, and ends with "held" or the reason why the shard was not copied.
GET /v1/alive: this node's name. With ?node= and &address=, that node's name if the agent there answers, else 504.
"""

import asyncio
import itertools
import os
import re
import select
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
from aiohttp import web

from everstep.runtime.net.tls_transport import TlsTransport
from everstep.runtime.net.token_gate import BadBody, TokenGate, read_body
from everstep.runtime.protocol.holdings import CopyRequest
from everstep.runtime.protocol.keeper import Keeper

SENDERS = 32
"""Peers that are served at the same time; others wait."""
_DRAIN_POLL_S = 0.001
_CHUNK_BYTES = 4 << 20
"""Bytes per send; about what a socket buffers."""
_TLS_CHUNK_BYTES = 256 << 10
"""Bytes encrypted at a time, so that plain and encrypted bytes fit into the core's cache."""
_LOCAL_RTT_US = 20
"""A round trip within a machine takes 5 us, over any network more than this."""
_LOCAL_BUFFER_BYTES = 128 << 10
"""Send buffer, in bytes, to a peer on this machine: the reader then finds the bytes in the core's cache. A GiB with
verified digests takes 0.7 times as long as with default buffers."""
_MIN_RTT_AT, _MIN_RTT = 148, struct.Struct("=I")
"""Offset and format of tcpi_min_rtt, in microseconds, in struct tcp_info of linux/tcp.h."""
STALL_S = 30.0
"""A peer that reads nothing for this long is gone. The kernel's own timeout is a quarter of an hour, during which
the slot being read could not be overwritten."""
_PROGRESS_INTERVAL_S = 0.5
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
Piece = memoryview | bytes


def application(
    keeper: Keeper,
    gate: TokenGate,
    threads: Executor,
    answer_alive: Callable[[str, str], Awaitable[str]],
    stall_s: float = STALL_S,
) -> web.Application:
    """The server of one agent. Blocking calls run in `threads`. A peer that reads nothing for `stall_s` is
    disconnected. `answer_alive` gets the node and the address that are asked for, empty: this one."""
    senders = ThreadPoolExecutor(SENDERS, "everstep-send")

    async def shard(request: web.Request) -> web.StreamResponse:
        place = [int(request.match_info[name]) for name in ("round", "iteration", "shard")]
        try:
            with keeper.open_shard(*place) as data:
                return await _send(request, data, senders, stall_s)
        except KeyError:
            text = "shard {2} of round {0}, iteration {1} is not in memory".format(*place)
            return web.Response(status=404, text=text)

    async def copy(request: web.Request) -> web.StreamResponse:
        try:
            wanted = msgspec.json.decode(await read_body(request), type=CopyRequest)
        except (msgspec.DecodeError, BadBody) as error:
            return web.Response(status=400, text=f"not understood: {error}")
        return await _copy(request, threads, partial(keeper.copy_shard, wanted))

    async def alive(request: web.Request) -> web.Response:
        name = await answer_alive(request.query.get("node", ""), request.query.get("address", ""))
        return web.Response(text=name) if name else web.Response(status=504, text="it does not answer")

    async def ends(_: web.Application) -> AsyncIterator[None]:
        yield
        senders.shutdown(wait=False)

    app = web.Application(middlewares=[gate.guard("job", lambda why: web.Response(status=401, text=why))])
    app.cleanup_ctx.append(ends)
    shards = r"/v1/shards/{round:\d+}/{iteration:\d+}/{shard:\d+}"
    app.add_routes([web.get(shards, shard), web.post("/v1/copies", copy), web.get("/v1/alive", alive)])
    return app


async def _copy(
    request: web.Request, threads: Executor, keep: Callable[[Callable[[], None]], None]
) -> web.StreamResponse:
    """Copy a shard, and answer with a dot whenever bytes have arrived, so that the peer sees progress."""
    response, moves, reported_count = web.StreamResponse(), itertools.count(1), 0
    progress_count = 0

    def count_move() -> None:
        nonlocal progress_count
        progress_count = next(moves)

    work = asyncio.get_running_loop().run_in_executor(threads, keep, count_move)
    try:
        await response.prepare(request)
        while not (await asyncio.wait([work], timeout=_PROGRESS_INTERVAL_S))[0]:
            if progress_count != reported_count:
                reported_count = progress_count
                await response.write(b".")
    finally:
        await asyncio.wait([work])  # The peer may be gone; the copy still runs to its end.
        error = work.exception()
    if error is not None and not isinstance(error, RuntimeError | OSError):
        raise error
    with suppress(ConnectionError):  # The peer is gone.
        await response.write(str(error or "held").encode())
        await response.write_eof()
    return response


async def _send(request: web.Request, shard: memoryview, senders: Executor, stall_s: float) -> web.StreamResponse:
    """Send the requested range of the shard, in a thread."""
    start, end, status = 0, len(shard), 200
    if range_match := _RANGE.fullmatch(request.headers.get("Range", "")):
        start, status = int(range_match[1]), 206
        end = min(int(range_match[2]) + 1 if range_match[2] else end, end)
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
        async with asyncio.timeout(stall_s):  # The headers must be sent first.
            while transport.get_write_buffer_size():
                await asyncio.sleep(_DRAIN_POLL_S)
        with shard[start:end] as part, _piece_source(transport) as pieces_of:
            await _send_in_thread(transport, pieces_of(part), senders, stall_s)
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError(f"the peer has taken nothing for {stall_s:g} s") from None
    await response.write_eof()
    return response


@contextmanager
def _piece_source(transport: asyncio.Transport) -> Iterator[Callable[[memoryview], Iterator[Piece]]]:
    """Yield a function that cuts bytes into the pieces for the transport's socket: plain, or sealed for TLS."""
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
    """Send the pieces in a thread and wait for it. Raises TimeoutError, OSError."""
    if transport.is_closing():
        raise ConnectionResetError("the peer hung up")
    # Our own descriptor: the loop may close the transport's, whose number may then be reused.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as own:
        sending = asyncio.get_running_loop().run_in_executor(senders, _send_pieces, own, pieces, stall_s)
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            with suppress(OSError):  # The peer hung up first.
                own.shutdown(socket.SHUT_RDWR)
            await asyncio.gather(sending, return_exceptions=True)  # The thread still reads the slot.
            raise


def _send_pieces(to: socket.socket, pieces: Iterator[Piece], stall_s: float) -> None:
    """Send all pieces. Raises TimeoutError, OSError.

    Copies them: sendfile(2) takes 4 KiB pages one by one, which costs three times as much (0.45 s per GiB against
    0.15 s), and bytes waiting in the socket would still be those of the slot.
    """
    _shrink_local_buffer(to)
    writable = select.poll()
    writable.register(to, select.POLLOUT)
    for piece in pieces:
        offset = 0
        while offset < len(piece):
            try:
                with memoryview(piece)[offset:] as rest:
                    offset += to.send(rest)
            except BlockingIOError:
                if not writable.poll(stall_s * 1000):
                    raise TimeoutError from None


def _shrink_local_buffer(to: socket.socket) -> None:
    """Shrink the send buffer to a peer on this machine. A network needs the buffer for the bytes in flight."""
    info = to.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + _MIN_RTT.size)
    if len(info) == _MIN_RTT_AT + _MIN_RTT.size and _MIN_RTT.unpack_from(info, _MIN_RTT_AT)[0] <= _LOCAL_RTT_US:
        to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
