"""A network between an S3 client and MinIO that misbehaves as it is told, request by request."""

import http.client
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Trouble(Enum):
    """What happens to one request."""

    NONE = "passed on, answered"
    BUSY = "answered 503 SlowDown, not passed on"
    TOO_MANY = "answered 429, not passed on"
    RESET = "the connection is cut, nothing passed on"
    SILENT = "passed on and done, but the connection is cut before the answer"
    TRUNCATED = "passed on and done; the answer breaks off half-way"
    SLOW = "passed on; the answer comes in drops"
    FULL = "answered 507 XMinioStorageFull, not passed on"
    GONE = "answered 404 NoSuchKey, not passed on"
    BROKEN = "answered 500 InternalError, not passed on"


Plan = Callable[[str, str, str], Trouble]
"""(method, path, query) -> what it suffers."""
_PAUSE_S = 0.01


def calm(method: str, path: str, query: str) -> Trouble:
    """Nothing ever happens."""
    return Trouble.NONE


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed, or has enough, is nothing to tell of."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Wire:
    """`endpoint` stands for the real one. `plan` may be set anew at any time."""

    def __init__(self, real: str, plan: Plan = calm) -> None:
        self.plan = plan
        self.suffered: Counter[Trouble] = Counter()
        self.delay_s = 0.0
        """How much longer each request takes."""
        self.deaf_to: frozenset[str] = frozenset()
        """Headers, in lower case, that are not passed on: a store that ignores them."""
        self.real = real.removeprefix("http://")
        self.connections: list[socket.socket] = []
        """All that clients have made."""
        self._lock = threading.Lock()
        self.server = _Server(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def trouble(self, method: str, target: str) -> Trouble:
        """What this request suffers; counted."""
        place = urlsplit(target)
        with self._lock:
            trouble_chosen = self.plan(method, place.path, place.query)
            self.suffered[trouble_chosen] += 1
        time.sleep(self.delay_s)
        return trouble_chosen

    def cut_all(self) -> None:
        """Close the connections, as a server does with those that are idle for long."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"wire": self})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wire: Wire

    def setup(self) -> None:
        """Called for each connection."""
        super().setup()
        self.wire.connections.append(self.connection)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.wire.trouble(self.command, self.path)
        if trouble is Trouble.RESET:
            self._cut()
        elif trouble is Trouble.BUSY:
            self._answer(503, [], b"<Error><Code>SlowDown</Code><Message>planned</Message></Error>")
        elif trouble is Trouble.FULL:
            self._answer(507, [], b"<Error><Code>XMinioStorageFull</Code><Message>planned</Message></Error>")
        elif trouble is Trouble.GONE:
            self._answer(404, [], b"<Error><Code>NoSuchKey</Code><Message>planned</Message></Error>")
        elif trouble is Trouble.BROKEN:
            self._answer(500, [], b"<Error><Code>InternalError</Code><Message>planned</Message></Error>")
        elif trouble is Trouble.TOO_MANY:
            self._answer(429, [("Retry-After", "0")], b"")
        else:
            self._pass_on(body, trouble)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 (as BaseHTTPRequestHandler names them)

    def _pass_on(self, body: bytes, trouble: Trouble) -> None:
        real = http.client.HTTPConnection(self.wire.real, timeout=60)
        try:
            real.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # The Host is signed: it stays what the client said.
                if name.lower() not in self.wire.deaf_to:
                    real.putheader(name, value)
            real.endheaders(body or None)
            answer = real.getresponse()
            data = answer.read()
        finally:
            real.close()
        if trouble is Trouble.SILENT:
            self._cut()
            return
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() != "connection"]
        self._answer(answer.status, headers, data, trouble)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, trouble: Trouble = Trouble.NONE
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding") or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if trouble is Trouble.TRUNCATED:
            self.wfile.write(data[: len(data) // 2])
            self._cut()
        elif trouble is Trouble.SLOW:
            quarter = len(data) // 4 + 1
            for start in range(0, len(data), quarter):
                time.sleep(_PAUSE_S)
                self.wfile.write(data[start : start + quarter])
        elif self.command != "HEAD":
            self.wfile.write(data)

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (as BaseHTTPRequestHandler names it)
        """Nothing: troubles are counted."""


@contextmanager
def through(real: str, plan: Plan = calm) -> Iterator[Wire]:
    """A wire to the server at that http:// address, until the block ends."""
    wire = Wire(real, plan)
    thread = threading.Thread(target=wire.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield wire
    finally:
        wire.server.shutdown()
        thread.join()
        wire.server.server_close()


def random_trouble(seed: int, share: float = 0.15, in_a_row: int = 3) -> Plan:
    """Any passing trouble, at that share of the requests; the same object at most `in_a_row` times in a row."""
    chance, kinds = (
        random.Random(seed),
        [kind for kind in Trouble if kind not in (Trouble.NONE, Trouble.FULL, Trouble.GONE)],
    )
    rows: Counter[tuple[str, str, str]] = Counter()

    def plan(method: str, path: str, query: str) -> Trouble:
        request_key = (method, path, "".join(parse_qs(query).get("partNumber", [])))
        if chance.random() >= share or rows[request_key] >= in_a_row:
            rows[request_key] = 0
            return Trouble.NONE
        rows[request_key] += 1
        return chance.choice(kinds)

    return plan


def once(trouble: Trouble, method: str, part: str) -> Plan:
    """That trouble for the first request of the method whose path or query has `part`."""
    troubles_left = [trouble]

    def plan(method_asked: str, path: str, query: str) -> Trouble:
        return (
            troubles_left.pop()
            if troubles_left and method_asked == method and part in f"{path}?{query}"
            else Trouble.NONE
        )

    return plan
