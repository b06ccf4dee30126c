"""A crowd of connections that mean no good: of several kinds, as many at once as one asks for."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

_HEAD = b"POST /v1/heartbeat HTTP/1.1\r\nHost: m\r\n"
_WRONG = b"Authorization: Bearer wrong\r\n"
KINDS: Mapping[str, bytes] = {
    "half head": _HEAD + b"X-Slow: ",
    "slow body": _HEAD + _WRONG + b"Content-Length: 100000\r\n\r\n{",
    "silent": b"",
    "wrong token": _HEAD + _WRONG + b"Content-Length: 2\r\n\r\n{}",
    "garbage": b"\x16\x03\x01" + random.Random(0).randbytes(200),
}
"""What each says at first."""
_HELLO = bytes.fromhex("16030100f5010000f10303")  # Of a client's first record of 245 bytes; more never comes.
AT_TLS: Mapping[str, bytes] = {
    "half handshake": _HELLO + random.Random(0).randbytes(100),
    "slow handshake": _HELLO,
    "silent": b"",
    "clear text": _HEAD + _WRONG + b"Content-Length: 2\r\n\r\n{}",
    "garbage": random.Random(0).randbytes(200),
    "renegotiation": b"\x16\x03\x03\x00\x04\x00\x00\x00\x00" * 20,
}
"""The same at a port that speaks TLS."""
_DRIPS = {"half head", "slow body", "slow handshake"}
_DRIP_S = 0.25
_PATIENCE_S = 30.0
"""A connection that the kernel does not take for so long will not be."""


@dataclass
class Crowd:
    """What became of it."""

    kinds: Mapping[str, bytes] = field(default_factory=lambda: KINDS)
    came: Counter[str] = field(default_factory=Counter)
    """Connections that were taken, of each kind."""

    async def attack(self, port: int, count: int, at_once: int) -> None:
        """So many connections to that port of this machine, at most so many at once; returns when the server has
        closed the last one."""
        numbers = iter(range(count))
        await asyncio.gather(*(self._come_and_stay(port, numbers) for _ in range(min(at_once, count))))

    async def _come_and_stay(self, port: int, numbers: Iterator[int]) -> None:
        kinds = list(self.kinds)
        for number in numbers:
            kind = kinds[number % len(kinds)]
            # Of another loopback address from time to time: one address has no more than 28,000 ports.
            local = (f"127.0.{1 + number // 20_000}.1", 0)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
                self.came[kind] += 1
                try:
                    await self._stay(kind, reader, writer)
                finally:
                    writer.transport.abort()

    async def _stay(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the server hangs up."""
        writer.write(self.kinds[kind])
        while True:
            try:
                async with asyncio.timeout(_DRIP_S if kind in _DRIPS else None):
                    if not await reader.read(1 << 16):
                        return
            except TimeoutError:
                writer.write(b"x")
