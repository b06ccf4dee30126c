"""Bring a shard's bytes, or some of them, from a peer's memory or from the store, and check that they are right."""

import http.client
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from everstep.runtime.checkpoint.errors import DamagedError, RestoreError, UnreachableError
from everstep.runtime.checkpoint.shard.digests import ArrivalCheck, check_shard
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.messages import Flaw, Holding, Refusal
from everstep.runtime.store import NoSuchKey, Store, TooShort

PEER_TIMEOUT_S = 30.0
"""Without a byte from the peer for so long, the next source is asked."""
_CHUNK_BYTES = 1 << 20
"""Bytes that are checked after they came from a peer: they are in the cache of the core then."""
_MAX_CONNECTIONS = 4
"""To one peer, by TLS: each end decrypts and encrypts them side by side, about 1.5 GiB/s on a core. On two cores a GiB
takes 0.7 times as long as by one."""
_CONNECTION_BYTES = 16 << 20
"""Bytes for which a connection is opened; to shake hands takes a millisecond or two."""


def fetch(
    source: Holding, buffer: memoryview, store: Store, credentials: Credentials, came: Callable[[], None] = lambda: None
) -> None:
    """Fill `buffer` (source.size bytes) from `source`. `came` is called as bytes come from a peer.

    Raises DamagedError, UnreachableError, one line: gone, shorter than promised or other bytes; or not to be had now.
    """
    arriving = ArrivalCheck(buffer, source.digest)
    try:
        if source.key or credentials.tls:  # Its parts come side by side.
            _read(source, 0, buffer, store, credentials, lambda _: came())
            check_shard(buffer, source.digest)
        else:

            def count(done: int) -> None:
                arriving.advance(done)
                came()

            _read(source, 0, buffer, store, credentials, count)
    except RestoreError as error:
        raise type(error)(f"{describe(source)}: {error}") from None


def read(source: Holding, start: int, buffer: memoryview, store: Store, credentials: Credentials) -> None:
    """Fill `buffer` with what stands at `source` from byte `start` on, unchecked.

    Raises DamagedError, UnreachableError, one line: gone or shorter than promised; or not to be had now.
    """
    try:
        _read(source, start, buffer, store, credentials, _ignore_progress)
    except RestoreError as error:
        raise type(error)(f"{describe(source)}: {error}") from None


def _read(
    source: Holding,
    start: int,
    buffer: memoryview,
    store: Store,
    credentials: Credentials,
    came: Callable[[int], None],
) -> None:
    """`came` is told, as they come from a peer, how many bytes of it are there; by TLS, of some part."""
    try:
        if source.key:
            store.read_into(source.key, start, buffer)
        else:
            _read_from_peer(source, start, buffer, credentials, came)
    except NoSuchKey:
        raise DamagedError("no such object") from None
    except TooShort as error:
        raise DamagedError(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(str(error)) from error


def _ignore_progress(_: int) -> None:
    """Whoever reads some bytes checks them."""


def describe(source: Holding) -> str:
    """As `Fetched.source` tells it."""
    return f"store {source.key}" if source.key else f"peer {source.node}"


def refusal(source: Holding, error: RestoreError) -> Refusal:
    """That source is not to be asked for this state again."""
    refused = Refusal(source.round, source.iteration, str(error), error.flaw or Flaw.DAMAGED, key=source.key)
    return refused if source.key else replace(refused, node=source.node, shard=source.shard)


def _read_from_peer(
    source: Holding, start: int, buffer: memoryview, credentials: Credentials, came: Callable[[int], None]
) -> None:
    """By TLS over several connections, in threads."""
    connections = max(1, min(_MAX_CONNECTIONS, len(buffer) // _CONNECTION_BYTES)) if credentials.tls else 1
    each = -(-len(buffer) // connections)

    def part(at: int) -> None:
        with buffer[at : at + each] as mine:
            _read_over_connection(source, start + at, mine, credentials, came)

    if connections == 1:
        _read_over_connection(source, start, buffer, credentials, came)
        return
    with ThreadPoolExecutor(connections, "everstep-fetch") as threads:
        for _ in threads.map(part, range(0, len(buffer), each)):
            pass


def _read_over_connection(
    source: Holding, start: int, buffer: memoryview, credentials: Credentials, came: Callable[[int], None]
) -> None:
    connection = credentials.connection(source.address, PEER_TIMEOUT_S)
    try:
        path = f"/v1/shards/{source.round}/{source.iteration}/{source.shard}"
        headers = dict(credentials.headers)
        if len(buffer) < source.size:
            headers["Range"] = f"bytes={start}-{start + len(buffer) - 1}"
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status == http.client.NOT_FOUND:
            raise DamagedError("it is held no more")
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise UnreachableError(f"answered {answer.status} {answer.reason}")
        done = 0
        while done < len(buffer):
            count = answer.readinto(buffer[done : done + _CHUNK_BYTES])
            if not count:
                raise UnreachableError(f"ended at byte {done} of {len(buffer)}")
            done += count
            came(done)
    finally:
        connection.close()
