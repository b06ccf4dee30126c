"""The digests of a shard: one for each block of data, in a table in the head, and one of the head.

The head is everything before the data: the header, the JSON part of the state, the table. Its digest determines every
byte of the shard, and a reader of some blocks checks just these. The agent fills the table once the worker has staged
the shard; until then it is zeros.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import xxhash

from everstep.runtime.checkpoint.errors import DamagedError

BLOCK_BYTES = 4 << 20
"""Bytes of data under one digest; the last block may be shorter."""
DIGESTS_TENSOR = "__everstep_digests__"
"""The tensor of the file that holds the table: uint8, the last one before the data."""
DIGEST_BYTES = 16
_THREADS = min(4, os.cpu_count() or 1)
_TABLE_ENTRY = re.compile(
    rb'"__everstep_digests__":\{"dtype":"U8","shape":\[\d+\],"data_offsets":\[(\d{1,18}),(\d{1,18})\]\}'
)


def table_size(data_bytes: int) -> int:
    """Size in bytes of the digests for that much data."""
    return DIGEST_BYTES * -(-data_bytes // BLOCK_BYTES)


def find_table(header: bytes) -> slice | None:
    """The position of the table according to the file's header; None if the header does not name it."""
    match = _TABLE_ENTRY.search(header)
    return slice(len(header) + int(match[1]), len(header) + int(match[2])) if match else None


def _find_whole_table(file: memoryview) -> slice | None:
    """The position of the table; None if some of it is missing."""
    header = 8 + int.from_bytes(file[:8], "little")
    table = find_table(bytes(file[:header])) if header <= len(file) else None
    return table if table and table.stop <= len(file) else None


class Digests:
    """The table of one shard. The file must contain at least the head."""

    def __init__(self, file: memoryview) -> None:
        """Raises DamagedError if the file does not start with the head of a shard."""
        table = _find_whole_table(file)
        if table is None:
            raise DamagedError("not a shard of Everstep, or the end of its head is missing: it has no digests")
        self._table = file[table]
        self.head = file[: table.stop]
        """Everything before the data."""

    def head_digest(self) -> str:
        """The shard's digest: xxh3_128 of the head as 32 hex digits."""
        return xxhash.xxh3_128(self.head).hexdigest()

    def comparison(self) -> tuple[str, str]:
        """Digests of the header, which tells names, shapes and offsets, and of the table: replicas have the same. The
        JSON part of the state, which may name the node's own things, counts in neither."""
        header = 8 + int.from_bytes(self.head[:8], "little")
        return xxhash.xxh3_128(self.head[:header]).hexdigest(), xxhash.xxh3_128(self._table).hexdigest()

    def fill(self, file: memoryview) -> None:
        """Compute the table from the data of the whole shard. Releases the interpreter lock.

        Raises DamagedError if the header gives the table less room than that data needs; it may give more, as the head
        of a shard ends where a page does.
        """
        data = file[len(self.head) :]
        if len(self._table) < table_size(len(data)):
            raise DamagedError(
                f"its table of digests has {len(self._table)} bytes, {table_size(len(data))} are needed for "
                f"{len(data)} bytes of data: not a shard of Everstep, or its header is damaged"
            )
        for number, start in enumerate(range(0, len(data), BLOCK_BYTES)):
            digest = xxhash.xxh3_128(data[start : start + BLOCK_BYTES]).digest()
            self._table[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] = digest

    def check(self, start: int, data: memoryview) -> None:
        """Check whole blocks that start at byte `start` of the file. Raises DamagedError."""
        running = self.start_check(start)
        running.update(data)
        running.finish()

    def start_check(self, start: int) -> "RunningCheck":
        """Start to check blocks incrementally, from the one that starts at byte `start`."""
        return RunningCheck(self, start)

    def require_block(self, block_hash: xxhash.xxh3_128, start: int, end: int) -> None:
        """Raises DamagedError unless `block_hash` is the hash of the block in these bytes of the file."""
        digest, at = block_hash.digest(), (start - len(self.head)) // BLOCK_BYTES * DIGEST_BYTES
        if digest != bytes(self._table[at : at + DIGEST_BYTES]):
            raise DamagedError(
                f"the digest of bytes {start} to {end} is {digest.hex()}, not what its head says: they are damaged"
            )

    def block_range(self, start: int, end: int, size: int) -> tuple[int, int]:
        """First byte and end of the blocks that contain bytes `start` to `end` of a file of `size` bytes."""
        base = len(self.head)
        return base + (start - base) // BLOCK_BYTES * BLOCK_BYTES, min(
            size, base - (base - end) // BLOCK_BYTES * BLOCK_BYTES
        )


class RunningCheck:
    """An incremental check of consecutive bytes, so that they can be checked while they are in the cache."""

    def __init__(self, digests: Digests, start: int) -> None:
        self.at = start
        """The next byte of the file."""
        self._digests, self._block, self._hash = digests, start, xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        """Add the next bytes. Raises DamagedError if a completed block is damaged."""
        hashed_bytes = 0
        while hashed_bytes < len(data):
            count = min(len(data) - hashed_bytes, self._block + BLOCK_BYTES - self.at)
            self._hash.update(data[hashed_bytes : hashed_bytes + count])
            hashed_bytes, self.at = hashed_bytes + count, self.at + count
            if self.at == self._block + BLOCK_BYTES:
                self.finish()

    def finish(self) -> None:
        """Check the last block, which may be shorter. Raises DamagedError."""
        if self.at > self._block:
            self._digests.require_block(self._hash, self._block, self.at)
            self._block, self._hash = self.at, xxhash.xxh3_128()


class ArrivalCheck:
    """Checks a whole shard while it arrives in order, each part while it is in the cache."""

    def __init__(self, file: memoryview, digest: str) -> None:
        """`file` is the buffer that is being filled; `digest` is the promised digest ("" accepts any)."""
        self._file, self._digest = file, digest
        self._running: RunningCheck | None = None

    def advance(self, end: int) -> None:
        """Check up to `end`, as those bytes have arrived. Raises DamagedError."""
        if self._running is None:
            if end < len(self._file) and _find_whole_table(self._file[:end]) is None:
                return
            digests = check_head(self._file[:end], self._digest)
            self._running = digests.start_check(len(digests.head))
        self._running.update(self._file[self._running.at : end])
        if end == len(self._file):
            self._running.finish()


def seal(file: memoryview) -> str:
    """Fill the table of a whole shard and return the shard's digest. Raises DamagedError if it is not a shard."""
    digests = Digests(file)
    digests.fill(file)
    return digests.head_digest()


def check_head(file: memoryview, digest: str) -> Digests:
    """The table of a shard whose head is present. Raises DamagedError if the digest differs ("" accepts any)."""
    digests = Digests(file)
    if digest and (actual_digest := digests.head_digest()) != digest:
        raise DamagedError(f"its digest is {actual_digest}, {digest} was promised: its bytes are damaged")
    return digests


def check_shard(file: memoryview, digest: str) -> None:
    """Check every byte of a whole shard against `digest`, by several threads. Raises DamagedError."""
    digests = check_head(file, digest)
    first = len(digests.head)
    each = BLOCK_BYTES * -(-(len(file) - first) // (BLOCK_BYTES * _THREADS)) or BLOCK_BYTES

    def part(start: int) -> None:
        digests.check(start, file[start : start + each])

    with ThreadPoolExecutor(_THREADS, "everstep-check") as threads:
        for _ in threads.map(part, range(first, len(file), each)):
            pass
