"""Bring a shard's bytes into a buffer from a peer's memory or from the store, and check that they are right."""

import http.client

import xxhash

from runtime.checkpoint.errors import RestoreError
from runtime.job.messages import Holding
from runtime.store import NoSuchKey, Store

PEER_TIMEOUT_S = 30.0
"""Without a byte from the peer for so long, the next source is asked."""
_CHUNK = 4 << 20


def shard_key(job: str, round_: int, iteration: int, shard: int) -> str:
    """The object of a persisted shard: immutable, the newest checkpoint sorts last."""
    return f"jobs/{job}/checkpoints/{round_:06d}-{iteration:09d}/rank-{shard:05d}.safetensors"


def digest_of(data: memoryview) -> str:
    """xxh3_128 as 32 hex digits. Other threads run meanwhile."""
    return xxhash.xxh3_128(data).hexdigest()


def fetch(source: Holding, buffer: memoryview, store: Store, token: str) -> str:
    """Fill `buffer` (source.size bytes) from `source`; returns the digest of what came.

    Raises RestoreError, one line: unreachable, gone, shorter than promised, or other bytes than promised.
    """
    try:
        if source.key:
            store.read_into(source.key, 0, buffer)
        else:
            _from_peer(source, buffer, token)
    except NoSuchKey:
        raise RestoreError(f"{described(source)}: no such object") from None
    except (OSError, http.client.HTTPException) as error:
        raise RestoreError(f"{described(source)}: {error}") from error
    found = digest_of(buffer)
    if source.digest and found != source.digest:
        raise RestoreError(f"{described(source)}: its digest is {found}, {source.digest} was promised")
    return found


def described(source: Holding) -> str:
    """As `Fetched.source` tells it."""
    return f"store {source.key}" if source.key else f"peer {source.node}"


def _from_peer(source: Holding, buffer: memoryview, token: str) -> None:
    connection = http.client.HTTPConnection(source.address, timeout=PEER_TIMEOUT_S)
    try:
        path = f"/v1/segments/{source.index}/{source.round}/{source.iteration}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise RestoreError(f"{described(source)}: answered {answer.status} {answer.reason}")
        done = 0
        while done < len(buffer):
            count = answer.readinto(buffer[done : done + _CHUNK])
            if not count:
                raise RestoreError(f"{described(source)}: ended at byte {done} of {len(buffer)}")
            done += count
    finally:
        connection.close()
