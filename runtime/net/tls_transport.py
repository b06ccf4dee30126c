"""TLS on an accepted connection: between the wire and a server's protocol.

asyncio's own implementation zeroes 256 KiB per connection (5 GB for the two of each of 10,000 agents) and hides its TLS
object: the event loop would then encrypt shards, instead of one thread for each.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from everstep.runtime.net.tls import TLS_HINT

_RECORD = 1 << 14
"""The most bytes of a TLS record: no read returns more."""
SPEAKS_TLS = f"this port speaks TLS, but received plain text; {TLS_HINT}"
_BODY = json.dumps({"error": SPEAKS_TLS}).encode()
_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
)


class TlsProtocol(asyncio.Protocol):
    """Does the handshake, then gives its inner protocol a `TlsTransport`. Answers plain HTTP with an error."""

    def __init__(self, inner: asyncio.Protocol, context: ssl.SSLContext) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._plain: TlsTransport | None = None
        self._greeted = self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "of a socket"
        self._wire = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._plain is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._greeted:
            self._greeted, self._deaf = True, data[:1].isalpha()  # A TLS record begins with 22.
            if self._deaf:
                self._wire.write(_ANSWER % (len(_BODY), _BODY))
                self._wire.write_eof()  # Not closed: data in flight would reset the connection.
        if self._deaf:
            return
        self._incoming.write(data)
        try:
            if self._plain is None:
                self._tls.do_handshake()
                self._plain = TlsTransport(self._wire, self._tls, self._outgoing)
                self._inner.connection_made(self._plain)
            while not self._wire.is_closing() and (plain := self._tls.read(_RECORD)):
                self._inner.data_received(plain)
            self._plain.close()  # The peer has closed its sending side.
        except ssl.SSLWantReadError:
            self._wire.write(self._outgoing.read())
        except ssl.SSLError:
            self._wire.write(self._outgoing.read())  # The alert for the peer.
            self._wire.close()

    def eof_received(self) -> bool | None:
        """When the peer stops sending, close our side too."""
        return False

    def pause_writing(self) -> None:
        if self._plain is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._plain is not None:
            self._inner.resume_writing()


class TlsTransport(asyncio.Transport):
    """Encrypts at once whatever is written; the wire's transport buffers."""

    def __init__(self, wire: asyncio.Transport, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        super().__init__({"ssl_object": tls, "sslcontext": tls.context})
        self._wire, self._tls, self._outgoing = wire, tls, outgoing
        self._lent = False

    @contextmanager
    def lend_encryptor(self) -> Iterator[Callable[[memoryview], bytes]]:
        """Lend the encryption to one other thread, which sends its output through the wire's socket.

        Meanwhile this transport must not write, and reads nothing.
        """
        self._wire.pause_reading()
        self._lent = True
        try:
            yield self._encrypt
        finally:
            self._lent = False
            self._wire.resume_reading()

    def _encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return super().get_extra_info(name) or self._wire.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._lent, "the thread that it is lent to writes"
        if data and not self._wire.is_closing():
            self._wire.write(self._encrypt(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._wire.is_closing()

    def close(self) -> None:
        """Send what was written, then tell the peer that this is the end."""
        if not self._wire.is_closing() and not self._lent:
            with suppress(ssl.SSLError):  # unwrap() also wants to read the peer's end.
                self._tls.unwrap()
            self._wire.write(self._outgoing.read())
        self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def is_reading(self) -> bool:
        return self._wire.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._wire.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._wire.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._wire.set_write_buffer_limits(high, low)
