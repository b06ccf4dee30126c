"""Bring a shard's bytes, or some of them, from a peer's memory or from the store, and check that they are right."""

import http.client
from collections.abc import Callable

from runtime.checkpoint.digests import Arriving, check
from runtime.checkpoint.errors import RestoreError
from runtime.job.messages import Holding
from runtime.store import NoSuchKey, Store

PEER_TIMEOUT_S = 30.0
"""Without a byte from the peer for so long, the next source is asked."""
MANIFEST = "manifest.json"
"""The object of a checkpoint that names the others: with it, it is committed."""
_CHUNK = 1 << 20
"""Bytes that are checked after they came from a peer: they are in the cache of the core then."""


def shard_key(job: str, round_: int, iteration: int, shard: int) -> str:
    """The object of a persisted shard: immutable, the newest checkpoint sorts last."""
    return f"{checkpoints_of(job)}{round_:06d}-{iteration:09d}/rank-{shard:05d}.safetensors"


def checkpoints_of(job: str) -> str:
    """What the keys of a job's checkpoints begin with."""
    return f"jobs/{job}/checkpoints/"


def fetch(
    source: Holding, buffer: memoryview, store: Store, token: str, came: Callable[[], None] = lambda: None
) -> None:
    """Fill `buffer` (source.size bytes) from `source`. `came` is called as bytes come from a peer.

    Raises RestoreError, one line: unreachable, gone, shorter than promised, or other bytes than promised.
    """
    arriving = Arriving(buffer, source.digest)
    try:
        if source.key:  # Its parts come side by side.
            _read(source, 0, buffer, store, token, _unchecked)
            check(buffer, source.digest)
        else:

            def count(done: int) -> None:
                arriving.came(done)
                came()

            _read(source, 0, buffer, store, token, count)
    except RestoreError as error:
        raise RestoreError(f"{described(source)}: {error}") from None


def read(source: Holding, start: int, buffer: memoryview, store: Store, token: str) -> None:
    """Fill `buffer` with what stands at `source` from byte `start` on, unchecked.

    Raises RestoreError, one line: unreachable, gone, or shorter than promised.
    """
    try:
        _read(source, start, buffer, store, token, _unchecked)
    except RestoreError as error:
        raise RestoreError(f"{described(source)}: {error}") from None


def _read(
    source: Holding, start: int, buffer: memoryview, store: Store, token: str, came: Callable[[int], None]
) -> None:
    """`came` is told how many bytes are there, as they come from a peer."""
    try:
        if source.key:
            store.read_into(source.key, start, buffer)
        else:
            _from_peer(source, start, buffer, token, came)
    except NoSuchKey:
        raise RestoreError("no such object") from None
    except (OSError, http.client.HTTPException) as error:
        raise RestoreError(str(error)) from error


def _unchecked(_: int) -> None:
    """Whoever reads some bytes checks them."""


def described(source: Holding) -> str:
    """As `Fetched.source` tells it."""
    return f"store {source.key}" if source.key else f"peer {source.node}"


def _from_peer(source: Holding, start: int, buffer: memoryview, token: str, came: Callable[[int], None]) -> None:
    connection = http.client.HTTPConnection(source.address, timeout=PEER_TIMEOUT_S)
    try:
        path = f"/v1/shards/{source.round}/{source.iteration}/{source.shard}"
        headers = {"Authorization": f"Bearer {token}"}
        if len(buffer) < source.size:
            headers["Range"] = f"bytes={start}-{start + len(buffer) - 1}"
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise RestoreError(f"answered {answer.status} {answer.reason}")
        done = 0
        while done < len(buffer):
            count = answer.readinto(buffer[done : done + _CHUNK])
            if not count:
                raise RestoreError(f"ended at byte {done} of {len(buffer)}")
            done += count
            came(done)
    finally:
        connection.close()
