"""HTTP requests that a manifest asks for: only http and https, and what was meant for one host is told to no other.

Standard library only, as `runtime/workflow/httprun.py` runs without any other. Rules after RFC 9110 (8.6, 15.4) and
curl's documentation ("Authorization" and own headers are not sent along to another host).
"""

import http.client
import ssl
import string
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

SCHEMES = ("http", "https")
REDIRECTS = 10
REDIRECTED = (301, 302, 303, 307, 308)
AS_IT_IS = (307, 308)
"""With the same method and body; the others ask by GET."""
OF_BODY = ("content-length", "content-type")
PORTS = {"http": 80, "https": 443}
PIECE = 1 << 20
WIRE = (http.client.HTTPException, OSError, ValueError)
"""What urllib and http.client raise for addresses, answers and connections that are none."""


class WebError(OSError):
    """There is no whole answer; one line that says why."""


class Request(NamedTuple):
    """What is asked, and how."""

    url: str
    method: str = "GET"
    headers: Sequence[tuple[str, str]] = ()
    """In order; of one name the last counts."""
    body: Any = None
    """bytes, or an open file."""
    timeout_s: float = 60.0
    """For the connection, and for each piece of the answer."""
    context: ssl.SSLContext | None = None


class Answer:
    """What came: head, and the body in pieces."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status
        self.reason = " ".join(str(response.reason).split())
        self.headers: list[tuple[str, str]] = list(response.headers.items())

    def pieces(self) -> Iterator[bytes]:
        """The body. Raises WebError when it ends before its length."""
        try:
            while piece := self._response.read(PIECE):
                yield piece
        except WIRE as error:
            raise WebError(reason(error)) from None
        # Asked for so many bytes, http.client takes an end for the whole.
        if getattr(self._response, "length", None):
            raise WebError("unexpected EOF")

    def body(self, limit: int) -> bytes:
        """All of it. Raises WebError, also when it is longer than `limit`."""
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) > limit:
                raise WebError(f"the answer is longer than {limit} bytes")
        return bytes(found)


@contextmanager
def opened(request: Request) -> Iterator[Answer]:
    """Send it, follow what it is redirected to, and give the answer, whatever its status. Raises WebError."""
    try:
        response = _sent(request)
    except WIRE as error:
        raise WebError(f"{request.method.title()} {_quoted(request.url)}: {reason(error)}") from None
    try:
        yield Answer(response)
    finally:
        response.close()


def _sent(request: Request) -> Any:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPSHandler(context=request.context), urllib.request.HTTPDefaultErrorHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "everstep")]
    for _ in range(REDIRECTS + 1):
        _check(request.url)
        asked = urllib.request.Request(request.url, request.body, dict(request.headers), method=request.method)
        try:
            return opener.open(asked, timeout=request.timeout_s)
        except urllib.error.HTTPError as answer:
            place = answer.headers.get("Location") if answer.code in REDIRECTED else None
            if not place:
                return answer
            answer.close()
            request = _next(request, answer.code, urllib.parse.urljoin(request.url, place))
    raise ValueError(f"stopped after {REDIRECTS} redirects")


def _check(url: str) -> None:
    """Raise ValueError, in the words of Go's client, for what is no address of the web."""
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ValueError(f"unsupported protocol scheme {_quoted(scheme)}")


def _next(request: Request, code: int, url: str) -> Request:
    """What a redirect makes of it, as Go's client does it; headers go only to the host that they were meant for."""
    url = urllib.parse.quote(url, safe=string.punctuation)
    headers = [(name, value) for name, value in request.headers if _may_follow(name, request.url, url)]
    if code in AS_IT_IS:
        if hasattr(request.body, "seek"):
            request.body.seek(0)
        return request._replace(url=url, headers=headers)
    headers = [(name, value) for name, value in headers if name.lower() not in OF_BODY]
    method = "HEAD" if request.method == "HEAD" else "GET"
    return request._replace(url=url, headers=headers, method=method, body=None)


def _may_follow(header: str, url: str, other: str) -> bool:
    return header.lower() in OF_BODY or same_host(url, other)


def same_host(one: str, other: str) -> bool:
    """Is the second address served by whom the first one named? So it is with https after http, not the other way."""
    first, second = urllib.parse.urlsplit(one), urllib.parse.urlsplit(other)
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
        return f"malformed HTTP response {_quoted(' '.join(map(str, error.args)))}"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _quoted(text: str) -> str:
    """As Go's %q has it: control characters as text."""
    return '"' + text.strip().encode("unicode_escape").decode().replace('"', '\\"')[:300] + '"'
