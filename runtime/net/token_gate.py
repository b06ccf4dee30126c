"""The gate of every HTTP server: a connection that has not shown the token gets little room and little time.

Until then it is a stranger, also during the TLS handshake. There are at most `MOST_STRANGERS`; one more closes the
oldest. So a silent crowd keeps nobody out: a process of the job shows the token with its first bytes, and by the time
it is the oldest it has had its turn (`MOST_ACCEPTS`). After `HEAD_S` a stranger is closed in any case, whatever it has
sent.

Descriptors are reserved for the job's own work. If they run out all the same, strangers are closed, nothing exits, and
one line a minute reports it. asyncio's own behaviour (a traceback for each of `backlog` attempts, every second) writes
gigabytes.
"""

import asyncio
import logging
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.tls_transport import TlsProtocol
from everstep.runtime.net.token import Bearer
from everstep.runtime.system.processes import is_shortage

HEAD_S = 10.0
"""A connection must have shown the token this long after it was accepted."""
BODY_S = 15.0
"""A body must arrive within this long. An agent does not wait longer for its answer either."""
MOST_STRANGERS = 256
"""Connections that have not shown the token."""
MOST_ACCEPTS = 16
"""Connections accepted before the loop serves the existing ones.

The oldest of 256 strangers has then been served 16 times; 6 are enough to read its head and answer it.
"""
RESERVED_DESCRIPTORS = 256
"""Descriptors that connections leave to the rest of the process; a quarter, if its limit is below 1024."""
LEAST_CONNECTIONS = 32
"""Connections that are accepted even if the rest of the process has used up its share."""
BACKLOG = 4096
"""Connections that may wait to be accepted: all agents of a job may come at once."""
KEEPALIVE_S = 75.0
TELL_S = 60.0
_SHORT_S = 1.0
"""Nothing is accepted for this long when descriptors have run out."""
END_S = 0.2
"""How long answers in progress may take when a server ends."""
_KEEPALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 60,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 15,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
}
_log = logging.getLogger("everstep.token_gate")
HTTP: Mapping[str, Any] = {
    "access_log": None,
    "logger": _log,
    "keepalive_timeout": KEEPALIVE_S,
    "lingering_time": 1.0,
    # A stranger's head is buffered while it arrives: 64 KiB at most. Ours have seven short lines.
    "max_line_size": 2048,
    "max_field_size": 2048,
    "max_headers": 32,
    # Compressed bodies are not unpacked: our agents compress nothing, and a small body stays small.
    "auto_decompress": False,
}
"""Arguments for every aiohttp server behind a gate."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BadBody(ValueError):  # noqa: N818 (a name that reads well in `except`)
    """A request's body is too large, too slow or incomplete; one line."""


class RateLimitedLog:
    """Logs an event at once the first time, then once a minute how often it has happened since."""

    def __init__(self, say: Callable[[str], None], every_s: float = TELL_S) -> None:
        self._say, self._every_s = say, every_s
        self._counts: Counter[str] = Counter()
        self._quiet: asyncio.TimerHandle | None = None

    def log(self, what: str) -> None:
        """Count the event; called on an event loop."""
        if self._quiet is None:
            self._say(what)
            self._start_interval()
        else:
            self._counts[what] += 1

    def close(self) -> None:
        """Log the remaining counts."""
        if self._quiet is not None:
            self._quiet.cancel()
        self._log_counts()

    def _start_interval(self) -> None:
        self._quiet = asyncio.get_running_loop().call_later(self._every_s, self._end_interval)

    def _end_interval(self) -> None:
        self._quiet = None
        if self._counts:
            self._log_counts()
            self._start_interval()

    def _log_counts(self) -> None:
        for what, count in self._counts.items():
            self._say(f"{what} ({count} more times)")
        self._counts.clear()


class TokenGate:
    """The gate of one server, on one event loop.

    Invariant: at most `strangers` connections have not shown the token, none of them for longer than `head_s`.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        strangers: int = MOST_STRANGERS,
        head_s: float = HEAD_S,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self._bearer, self._tls = Bearer(credentials.token), credentials.server
        self._most, self._head_s = strangers, head_s
        self._seldom = RateLimitedLog(say)
        self._connections: dict[object, _Connection] = {}
        """By socket."""
        self._strangers: dict[_Connection, float] = {}
        """Since when, on the loop's clock; the oldest first."""
        self._sweep: asyncio.TimerHandle | None = None
        self._accepting: set[asyncio.Task[None]] = set()
        self.refused = 0
        """Requests without the token."""

    def admits(self, request: web.BaseRequest) -> bool:
        """Does the request show the token? If so, its connection is no longer a stranger."""
        if not self._bearer.is_shown(request.headers):
            self.refused += 1
            return False
        if connection := self._connections.get(request.get_extra_info("socket")):
            self._strangers.pop(connection, None)
        return True

    def guard(self, what: str, answer: Callable[[str], web.Response]) -> Any:
        """A middleware that admits requests with the token. Others get `answer` with the reason, and are closed."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self.admits(request):
                return await handler(request)
            refusal = answer(f"the Authorization header does not have this {what}'s token")
            refusal.force_close()
            return refusal

        return guard

    @asynccontextmanager
    async def serve(self, runner: web.BaseRunner, listener: socket.socket) -> AsyncIterator[None]:
        """Serve connections to `listener` with `runner` while the block runs; both end with it."""
        await runner.setup()
        _log.addFilter(_is_own_error)
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            assert runner.server is not None, "it was set up"
            self._listen(loop, listener, runner.server)
            try:
                yield
            finally:
                loop.remove_reader(listener)
                listener.close()
        finally:
            self._close()
            await asyncio.gather(*self._accepting, return_exceptions=True)
            await runner.cleanup()

    def _close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._strangers):
            self._hang_up(connection)
        self._seldom.close()

    def _listen(self, loop: asyncio.AbstractEventLoop, listener: socket.socket, serve: web.Server) -> None:
        if listener.fileno() >= 0:
            loop.add_reader(listener, self._accept, loop, listener, serve)

    def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket, serve: web.Server) -> None:
        for _ in range(MOST_ACCEPTS):
            try:
                client_socket, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._seldom.log(f"no connection can be accepted: {error.strerror}")
                if not (is_shortage(error) and self._make_room()):
                    loop.remove_reader(listener)
                    loop.call_later(_SHORT_S, self._listen, loop, listener, serve)
                return
            if self._has_room(client_socket.fileno()):
                self._add_stranger(loop, client_socket, serve)
            else:
                client_socket.close()
                self._seldom.log("a connection was refused: all descriptors but those for the job's own work are used")

    def _has_room(self, descriptor: int) -> bool:
        """Is there room for a connection with that descriptor (the lowest free one)? May close a stranger."""
        if len(self._strangers) >= self._most:
            self._seldom.log(f"a connection was closed: more than {self._most} had not shown this job's token")
            self._make_room()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = soft != resource.RLIM_INFINITY and descriptor >= soft - min(RESERVED_DESCRIPTORS, soft // 4)
        return not few or len(self._connections) < LEAST_CONNECTIONS or self._make_room()

    def _make_room(self) -> bool:
        """Close the oldest stranger; False if there is none."""
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._hang_up(oldest)
        return oldest is not None

    def _add_stranger(self, loop: asyncio.AbstractEventLoop, client_socket: socket.socket, serve: web.Server) -> None:
        client_socket.setblocking(False)
        inner = TlsProtocol(serve(), self._tls) if self._tls else serve()
        connection = _Connection(inner, client_socket, self._connections)
        self._strangers[connection] = loop.time()
        if self._sweep is None:
            self._sweep = loop.call_later(self._head_s, self._hang_up_late, loop)
        connection.task = task = loop.create_task(connection.open(loop))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        connection.on_end = lambda: self._strangers.pop(connection, None)

    def _hang_up_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = None
        for connection, since in list(self._strangers.items()):
            if since + self._head_s > loop.time():
                self._sweep = loop.call_at(since + self._head_s, self._hang_up_late, loop)
                return
            self._seldom.log(f"a connection was closed: it had not shown this job's token in {self._head_s:g} s")
            self._hang_up(connection)

    def _hang_up(self, connection: "_Connection") -> None:
        del self._strangers[connection]
        connection.end()


class _Connection(asyncio.Protocol):
    """Passes everything on to the server's own protocol, and notices its end."""

    def __init__(
        self, inner: asyncio.Protocol, client_socket: socket.socket, admitted_connections: dict[object, "_Connection"]
    ) -> None:
        self._inner, self._accepted, self._known = inner, client_socket, admitted_connections
        self._transport: asyncio.BaseTransport | None = None
        self.task: asyncio.Task[None] | None = None
        self.on_end: Callable[[], object] = lambda: None

    async def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to read; ends quietly if that is impossible."""
        try:
            await loop.connect_accepted_socket(lambda: self, self._accepted)
        except (OSError, asyncio.CancelledError):
            self._accepted.close()
            self.on_end()

    def end(self) -> None:
        """Close the connection at once."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._known[transport.get_extra_info("socket")] = self
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None, "it was made"
        self._known.pop(self._transport.get_extra_info("socket"), None)
        self.on_end()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


async def read_body(request: web.BaseRequest, limit_s: float = BODY_S) -> bytes:
    """The whole body. Raises BadBody: it is too large, or has not arrived within `limit_s`."""
    try:
        if request.content.is_eof():  # It came with the head: a timer would cost more than the rest.
            return await request.read()
        async with asyncio.timeout(limit_s):
            return await request.read()
    except TimeoutError:
        raise BadBody(f"the body did not come within {limit_s:g} s") from None
    except web.HTTPRequestEntityTooLarge as error:
        most = request.client_max_size
        raise BadBody(f"the body has more than {most} bytes") from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise BadBody(f"the body cannot be read: {error}") from error


def server_of(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> web.ServerRunner:
    """A server with one handler for everything, to run behind a gate."""
    return web.ServerRunner(web.Server(handler, **HTTP), shutdown_timeout=END_S)


def application_of(app: web.Application, *, end_s: float = END_S, cancels: bool = False) -> web.AppRunner:
    """A runner of an application, behind a gate. `cancels`: a handler ends with its connection."""
    return web.AppRunner(app, shutdown_timeout=end_s, handler_cancellation=cancels, **HTTP)


def listen(host: str, port: int) -> socket.socket:
    """A listener; an empty `host` is every address of this machine. Raises OSError.

    Keepalive finds vanished peers within minutes, not after the kernel's two hours.
    """
    if not host and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    for option, value in _KEEPALIVE.items():  # Accepted connections inherit it.
        listener.setsockopt(*option, value)
    return listener


def _is_own_error(record: logging.LogRecord) -> bool:
    """False for bytes that are not HTTP: the fault is the sender's (a port scan), answered with 400 and not logged."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
