"""Bring a shard, or a range of it, from a peer's memory or from the store, and check its bytes."""

import http.client
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from everstep.runtime.checkpoint.errors import DamagedError, RestoreError, UnreachableError
from everstep.runtime.checkpoint.shard.digests import ArrivalCheck, check_shard
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Flaw, Holding, Refusal
from everstep.runtime.store import NoSuchKey, Store, TooShort

PEER_TIMEOUT_S = 30.0
"""The next source is tried if the peer sends no byte for this long."""
_CHUNK_BYTES = 1 << 20
"""Bytes that are checked at once after they arrive from a peer, while they are in the core's cache."""
_MAX_CONNECTIONS = 4
"""To one peer by TLS. Encryption takes about 1 s of a core for 1.5 GiB at each end; on two cores a GiB takes 0.7 times
as long as over one connection."""
_CONNECTION_BYTES = 16 << 20
"""Bytes that justify one more connection; its handshake takes a millisecond or two."""


def fetch(
    source: Holding, buffer: memoryview, store: Store, credentials: Credentials, came: Callable[[], None] = lambda: None
) -> None:
    """Fill `buffer` (source.size bytes) from `source` and check it. Calls `came` whenever bytes arrive from a peer.

    Raises DamagedError (missing, shorter than promised, or other bytes) or UnreachableError (not available now), in one
    line.
    """
    arriving = ArrivalCheck(buffer, source.digest)
    try:
        if source.key or credentials.tls:  # Parts arrive in parallel.
            _read(source, 0, buffer, store, credentials, lambda _: came())
            check_shard(buffer, source.digest)
        else:

            def count(bytes_done: int) -> None:
                arriving.advance(bytes_done)
                came()

            _read(source, 0, buffer, store, credentials, count)
    except RestoreError as error:
        raise type(error)(f"{describe(source)}: {error}") from None


def read(source: Holding, start: int, buffer: memoryview, store: Store, credentials: Credentials) -> None:
    """Fill `buffer` with the bytes of `source` from `start` on, unchecked.

    Raises DamagedError (missing or shorter than promised) or UnreachableError (not available now), in one line.
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
    """Calls `came` with the number of bytes that have arrived from a peer; over TLS, of one part."""
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
    """The caller checks the bytes."""


def describe(source: Holding) -> str:
    """The source as in `Fetched.source`."""
    return f"store {source.key}" if source.key else f"peer {source.node}"


def refusal(source: Holding, error: RestoreError) -> Refusal:
    """A record that this source is not to be asked for this checkpoint again."""
    refused_source = Refusal(source.round, source.iteration, str(error), error.flaw or Flaw.DAMAGED, key=source.key)
    return refused_source if source.key else replace(refused_source, node=source.node, shard=source.shard)


def _read_from_peer(
    source: Holding, start: int, buffer: memoryview, credentials: Credentials, came: Callable[[int], None]
) -> None:
    """Over TLS it uses several connections, in threads."""
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
            raise DamagedError("it is no longer in memory")
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise UnreachableError(f"answered {answer.status} {answer.reason}")
        bytes_done = 0
        while bytes_done < len(buffer):
            count = answer.readinto(buffer[bytes_done : bytes_done + _CHUNK_BYTES])
            if not count:
                raise UnreachableError(f"ended at byte {bytes_done} of {len(buffer)}")
            bytes_done += count
            came(bytes_done)
    finally:
        connection.close()


def read_bytes(data: memoryview, _: Holding, start: int, buffer: memoryview) -> None:
    """Fill the buffer from a shard in this process's memory, from byte `start` on."""
    buffer[:] = data[start : start + len(buffer)]
