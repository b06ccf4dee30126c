"""HTTP requests that a manifest asks for: only http and https, and headers for one host go to no other.

Standard library only, because `runtime/workflow/local_pods/httprun.py` runs without other packages. Rules after RFC
9110 (8.6, 15.4) and curl's documentation (it does not send "Authorization" and custom headers to another host).
"""

import http.client
import socket
import ssl
import string
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

SCHEMES = ("http", "https")
REDIRECTS = 10
REDIRECTED = (301, 302, 303, 307, 308)
KEEPS_METHOD = (307, 308)
"""Redirects that keep method and body; the others change to GET."""
BODY_HEADERS = ("content-length", "content-type")
PORTS = {"http": 80, "https": 443}
PIECE = 1 << 20
CONNECT_S = 10.0
"""Seconds for each address of a host to accept the connection."""
SLOW_S, SLOW_BYTES = 60.0, 1024
"""An answer with fewer bytes in this many seconds has failed: a server could send a byte now and then forever."""
WIRE_ERRORS = (http.client.HTTPException, OSError, ValueError)
"""What urllib and http.client raise for invalid addresses, answers and connections."""


class WebError(OSError):
    """No complete answer came; the text is one line that says why."""


class Request(NamedTuple):
    """A request."""

    url: str
    method: str = "GET"
    headers: Sequence[tuple[str, str]] = ()
    """In order; of several with one name the last counts."""
    body: Any = None
    """bytes, or an open file."""
    timeout_s: float = 60.0
    """For the head of the answer, and for each read of its body."""
    context: ssl.SSLContext | None = None
    ending: "Ending | None" = None
    """Lets another thread end the request."""


class Ending:
    """Ends a request from another thread: whatever it waits for fails at once."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._others: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self.why = ""
        """The reason for the end; empty while the request may continue."""

    def end(self, why: str) -> None:
        """End the request. The first reason counts."""
        with self._lock:
            self.why = self.why or why
            for end_wait in self._others:
                end_wait()
        for connection in list(self._sockets):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def reaching(self, other: Callable[[], None]) -> Iterator[None]:
        """What the block waits for is no socket: `other` ends it, at once where that has been asked before.

        Invariant: `other` is never called when the block is over.
        """
        with self._lock:
            self._others.append(other)
            if self.why:
                other()
        try:
            yield
        finally:
            with self._lock:
                self._others.remove(other)

    def check(self) -> None:
        """Raise WebError if the request was ended."""
        if self.why:
            raise WebError(self.why)

    def connect(self, address: tuple[str, int], timeout: float, source: Any = None) -> socket.socket:
        """`socket.create_connection`, with a duplicate kept: TLS replaces the socket, but not its duplicate."""
        connection = socket.create_connection(address, min(timeout, CONNECT_S), source)
        connection.settimeout(timeout)
        self._sockets.append(connection.dup())
        if self.why:
            connection.close()
            raise OSError(self.why)
        return connection

    def close(self) -> None:
        """The connection is over; drop the duplicate."""
        while self._sockets:
            self._sockets.pop().close()


class Answer:
    """An answer: its head, and its body in pieces."""

    def __init__(self, response: Any, ending: Ending) -> None:
        self._response = response
        self._ending = ending
        self.clock = time.monotonic
        """Measures whether the body comes too slowly."""
        self.status: int = response.status
        self.reason = " ".join(str(response.reason).split())
        self.headers: list[tuple[str, str]] = list(response.headers.items())

    def pieces(self) -> Iterator[bytes]:
        """The body. Raises WebError if it is shorter than its length, is ended, or comes too slowly."""
        began, came = self.clock(), 0
        try:
            while piece := self._response.read1(PIECE):
                yield piece
                came += len(piece)
                if (now := self.clock()) - began >= SLOW_S:
                    if came < SLOW_BYTES:
                        raise WebError(f"less than {SLOW_BYTES} bytes came in {SLOW_S:.0f} s")
                    began, came = now, 0
        except WIRE_ERRORS as error:
            raise WebError(self._ending.why or reason(error)) from None
        self._ending.check()
        # For a sized read http.client takes the end of the stream for the end of the body.
        if getattr(self._response, "length", None):
            raise WebError("unexpected EOF")

    def body(self, limit: int) -> bytes:
        """The whole body. Raises WebError, also if it is longer than `limit`."""
        content = bytearray()
        for piece in self.pieces():
            content += piece
            if len(content) > limit:
                raise WebError(f"the answer is longer than {limit} bytes")
        return bytes(content)


@contextmanager
def open_request(request: Request) -> Iterator[Answer]:
    """Send the request, follow redirects, and give the answer, whatever its status. Raises WebError."""
    ending = request.ending or Ending()
    try:
        ending.check()
        with _head_in_time(request, ending):
            response = _send(request, ending)
        if ending.why:  # http.client accepts an incomplete head.
            response.close()
            ending.check()
    except WIRE_ERRORS as error:
        ending.close()
        raise WebError(f"{request.method.title()} {_quote(request.url)}: {ending.why or reason(error)}") from None
    try:
        yield Answer(response, ending)
    finally:
        response.close()
        ending.close()


@contextmanager
def _head_in_time(request: Request, ending: Ending) -> Iterator[None]:
    """Limit the time for the whole head, which may come byte by byte. Sending a file may take as long as it needs."""
    timer = threading.Timer(request.timeout_s, ending.end, ("context deadline exceeded",))
    timer.daemon = True
    if not hasattr(request.body, "read"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Handler(urllib.request.AbstractHTTPHandler):
    """Makes connections that can be ended."""

    def __init__(self, context: ssl.SSLContext | None, ending: Ending) -> None:
        super().__init__()
        self._tls = context
        self._ending = ending

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def http_open(self, request: urllib.request.Request) -> Any:
        """Over plain HTTP."""
        return self.do_open(self._connect_by(http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        """Over TLS."""
        return self.do_open(self._connect_by(http.client.HTTPSConnection), request, context=self._tls)

    def _connect_by(self, kind: Any) -> Any:
        def make(*arguments: Any, **more: Any) -> Any:
            connection = kind(*arguments, **more)
            connection._create_connection = self._ending.connect
            return connection

        return make


def _send(request: Request, ending: Ending) -> Any:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), _Handler(request.context, ending), urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "everstep")]
    for _ in range(REDIRECTS + 1):
        _check(request.url)
        outgoing = urllib.request.Request(request.url, request.body, dict(request.headers), method=request.method)
        try:
            return opener.open(outgoing, timeout=request.timeout_s)
        except urllib.error.HTTPError as answer:
            place = answer.headers.get("Location") if answer.code in REDIRECTED else None
            if not place:
                return answer
            answer.close()
            ending.close()  # Otherwise the duplicate would keep the connection open.
            request = _follow_redirect(request, answer.code, urllib.parse.urljoin(request.url, place))
    raise ValueError(f"stopped after {REDIRECTS} redirects")


def _check(url: str) -> None:
    """Raise ValueError, worded as by Go's client, for an address that is not http or https."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ValueError(f"unsupported protocol scheme {_quote(scheme)}")


def _follow_redirect(request: Request, code: int, url: str) -> Request:
    """The request after a redirect, as Go's client makes it; headers go only to the host that they were meant for."""
    url = urllib.parse.quote(url, safe=string.punctuation)
    headers = [(name, value) for name, value in request.headers if _may_follow(name, request.url, url)]
    if code in KEEPS_METHOD:
        if hasattr(request.body, "seek"):
            request.body.seek(0)
        return request._replace(url=url, headers=headers)
    headers = [(name, value) for name, value in headers if name.lower() not in BODY_HEADERS]
    method = "HEAD" if request.method == "HEAD" else "GET"
    return request._replace(url=url, headers=headers, method=method, body=None)


def _may_follow(header: str, url: str, other: str) -> bool:
    return header.lower() in BODY_HEADERS or same_host(url, other)


def same_host(url: str, other_url: str) -> bool:
    """Does the second address belong to the first one's host? https after http does, http after https does not."""
    first, second = urllib.parse.urlsplit(url), urllib.parse.urlsplit(other_url)
    places = [(part.scheme, part.port or PORTS.get(part.scheme)) for part in (first, second)]
    upgraded = places == [("http", PORTS["http"]), ("https", PORTS["https"])]
    return first.hostname == second.hostname and (places[0] == places[1] or upgraded)


def reason(error: Exception) -> str:
    """Why there is no answer, in one line."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return reason(error.reason)
    if isinstance(error, http.client.RemoteDisconnected):
        return "EOF"
    if isinstance(error, http.client.IncompleteRead):
        return "unexpected EOF"
    if isinstance(error, http.client.BadStatusLine):
        return f"malformed HTTP response {_quote(' '.join(map(str, error.args)))}"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _quote(text: str) -> str:
    """Quote as Go's %q: control characters are escaped."""
    return '"' + text.strip().encode("unicode_escape").decode().replace('"', '\\"')[:300] + '"'
