"""A shard that comes from a peer by TLS: several connections side by side, each byte of it checked."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import torch

from everstep.runtime.agent.peer_server import application
from everstep.runtime.checkpoint.errors import DamagedError, UnreachableError
from everstep.runtime.checkpoint.node.keeper_io import request_copy
from everstep.runtime.checkpoint.shard import fetch as fetching
from everstep.runtime.checkpoint.shard.digests import seal
from everstep.runtime.checkpoint.shard.fetch import fetch, read
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import TokenGate, application_of, listen
from everstep.runtime.protocol.holdings import CopyRequest, Holding
from tests.checkpoint.test_restoring import stage_state
from tests.credentials import credentials

SIZE = 3_000_000


class Holder:
    """What the server asks of a keeper."""

    def __init__(self) -> None:
        self.shard = stage_state({"t": torch.randint(0, 256, (SIZE,), dtype=torch.uint8)})
        self.digest, self.asked = seal(self.shard), 0

    @contextmanager
    def open_shard(self, *_: int) -> Iterator[memoryview]:
        """The shard."""
        self.asked += 1
        yield self.shard[:]

    def copy_shard(self, request: CopyRequest, on_progress: Any) -> None:
        """As if there were room."""
        on_progress()

    def holding(self, address: str) -> Holding:
        """What others are told of it."""
        return Holding(1, 1, size=len(self.shard), digest=self.digest, node="peer", address=address)


@contextmanager
def peer(holder: Holder) -> Iterator[str]:
    """Its agent's server, in a thread; the address."""
    listener, over = listen("127.0.0.1", 0), threading.Event()

    async def serve() -> None:
        gate = TokenGate(credentials())
        with ThreadPoolExecutor(2) as threads:
            async with gate.serve(application_of(application(cast(Any, holder), gate, threads, AsyncMock())), listener):
                await asyncio.to_thread(over.wait)

    address = f"127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield address
    finally:
        over.set()
        thread.join()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_CONNECTION_BYTES", SIZE // 3)


NO_STORE = cast(Any, None)


def test_a_shard_comes_by_several_connections_and_is_what_it_was() -> None:
    holder, came = Holder(), []
    with peer(holder) as address:
        source, buffer = holder.holding(address), memoryview(bytearray(len(holder.shard)))
        fetch(source, buffer, NO_STORE, credentials(), lambda: came.append(1))
        assert bytes(buffer) == bytes(holder.shard)
        assert holder.asked == 3
        assert came
        some = memoryview(bytearray(1_234_567))
        read(source, 77, some, NO_STORE, credentials())
        assert bytes(some) == bytes(holder.shard[77 : 77 + len(some)])
        assert request_copy(address, CopyRequest(source), credentials()) == ""


def test_what_was_damaged_at_the_peer_is_found() -> None:
    holder = Holder()
    holder.shard[len(holder.shard) - 5] ^= 1
    with peer(holder) as address, pytest.raises(DamagedError, match="peer peer: the digest of bytes"):
        fetch(holder.holding(address), memoryview(bytearray(len(holder.shard))), NO_STORE, credentials())


@pytest.mark.parametrize(
    ("credentials_used", "why"),
    [
        (credentials("another"), "CERTIFICATE_VERIFY_FAILED"),
        (credentials("t", "another"), "CERTIFICATE_VERIFY_FAILED"),
        (Credentials("t"), "answered 400"),
        (Credentials("another", credentials().authority), "answered 401"),
    ],
    ids=["token", "job", "clear", "authority alone"],
)
def test_who_has_not_the_jobs_token_gets_no_byte(credentials_used: Credentials, why: str) -> None:
    holder = Holder()
    with peer(holder) as address, pytest.raises(UnreachableError, match=f"peer peer: .*{why}"):
        fetch(holder.holding(address), memoryview(bytearray(len(holder.shard))), NO_STORE, credentials_used)
    assert not holder.asked
