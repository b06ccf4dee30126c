"""The digests of a shard: one of each block of its data, in a table in its head, and one of the head.

The head is what stands before the data: the header, the JSON part of the state, the table. Its digest says what every
byte of the shard must be, and a reader of some blocks checks just these. The agent fills the table in once the worker
has staged the shard; until then it is zeros.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import xxhash

from everstep.runtime.checkpoint.errors import DamagedError

BLOCK_BYTES = 4 << 20
"""Bytes of data under one digest; the last block may be shorter."""
DIGESTS_TENSOR = "__everstep_digests__"
"""The tensor of the file that is the table: uint8, the last one before the data."""
DIGEST_BYTES = 16
_THREADS = min(4, os.cpu_count() or 1)
_TABLE_ENTRY = re.compile(
    rb'"__everstep_digests__":\{"dtype":"U8","shape":\[\d+\],"data_offsets":\[(\d{1,18}),(\d{1,18})\]\}'
)


def table_size(data_bytes: int) -> int:
    """Bytes that the digests of so much data take."""
    return DIGEST_BYTES * -(-data_bytes // BLOCK_BYTES)


def find_table(header: bytes) -> slice | None:
    """Where the table is, as the file's header says; None when it does not."""
    found = _TABLE_ENTRY.search(header)
    return slice(len(header) + int(found[1]), len(header) + int(found[2])) if found else None


def _find_whole_table(file: memoryview) -> slice | None:
    """The same; None when not all of it is there."""
    header = 8 + int.from_bytes(file[:8], "little")
    found = find_table(bytes(file[:header])) if header <= len(file) else None
    return found if found and found.stop <= len(file) else None


class Digests:
    """The table of one shard, of whose bytes at least the head is there."""

    def __init__(self, file: memoryview) -> None:
        """Raises DamagedError when this is no head of a shard."""
        table = _find_whole_table(file)
        if table is None:
            raise DamagedError("not a shard of Everstep, or the end of its head is missing: no digests are in it")
        self._table = file[table]
        self.head = file[: table.stop]
        """Everything before the data."""

    def head_digest(self) -> str:
        """xxh3_128 of the head as 32 hex digits: the shard's digest."""
        return xxhash.xxh3_128(self.head).hexdigest()

    def fill(self, file: memoryview) -> None:
        """Compute the table from the whole shard's data. Other threads run meanwhile."""
        data = file[len(self.head) :]
        for number, start in enumerate(range(0, len(data), BLOCK_BYTES)):
            digest = xxhash.xxh3_128(data[start : start + BLOCK_BYTES]).digest()
            self._table[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] = digest

    def check(self, start: int, data: memoryview) -> None:
        """Raises DamagedError when `data` is not what stood in the file from byte `start` on: whole blocks."""
        running = self.start_check(start)
        running.update(data)
        running.finish()

    def start_check(self, start: int) -> "RunningCheck":
        """To check what stood in the file from the block on that begins at byte `start`, as it comes."""
        return RunningCheck(self, start)

    def require_block(self, hashed: xxhash.xxh3_128, start: int, end: int) -> None:
        """Raises DamagedError when what was hashed is not the block in these bytes of the file."""
        digest, at = hashed.digest(), (start - len(self.head)) // BLOCK_BYTES * DIGEST_BYTES
        if digest != bytes(self._table[at : at + DIGEST_BYTES]):
            raise DamagedError(
                f"the digest of bytes {start} to {end} is {digest.hex()}, not what its head says: they are damaged"
            )

    def block_range(self, start: int, end: int, size: int) -> tuple[int, int]:
        """The whole blocks that hold bytes `start` to `end` of a file of `size` bytes, as first byte and end."""
        base = len(self.head)
        return base + (start - base) // BLOCK_BYTES * BLOCK_BYTES, min(
            size, base - (base - end) // BLOCK_BYTES * BLOCK_BYTES
        )


class RunningCheck:
    """A check of bytes that follow each other, a few at a time: so they may be checked where they are in the cache."""

    def __init__(self, digests: Digests, start: int) -> None:
        self.at = start
        """Byte of the file that comes next."""
        self._digests, self._block, self._hash = digests, start, xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        """The next bytes. Raises DamagedError when a block is complete and is not what it was."""
        done = 0
        while done < len(data):
            some = min(len(data) - done, self._block + BLOCK_BYTES - self.at)
            self._hash.update(data[done : done + some])
            done, self.at = done + some, self.at + some
            if self.at == self._block + BLOCK_BYTES:
                self.finish()

    def finish(self) -> None:
        """The last block may be shorter. Raises DamagedError."""
        if self.at > self._block:
            self._digests.require_block(self._hash, self._block, self.at)
            self._block, self._hash = self.at, xxhash.xxh3_128()


class ArrivalCheck:
    """A check of a whole shard that comes from its first byte on, of each part when it has come: it is in the cache."""

    def __init__(self, file: memoryview, digest: str) -> None:
        """`file` is where it comes to, `digest` what it is promised to have ("" for any)."""
        self._file, self._digest = file, digest
        self._running: RunningCheck | None = None

    def advance(self, end: int) -> None:
        """Its first `end` bytes are there. Raises DamagedError when they are not those that were promised."""
        if self._running is None:
            if end < len(self._file) and _find_whole_table(self._file[:end]) is None:
                return
            digests = check_head(self._file[:end], self._digest)
            self._running = digests.start_check(len(digests.head))
        self._running.update(self._file[self._running.at : end])
        if end == len(self._file):
            self._running.finish()


def seal(file: memoryview) -> str:
    """Fill the table of a whole shard; returns the shard's digest. Raises DamagedError when it is none."""
    digests = Digests(file)
    digests.fill(file)
    return digests.head_digest()


def check_head(file: memoryview, digest: str) -> Digests:
    """The table of a shard whose head is here, if its digest is that one ("" for any). Raises DamagedError."""
    digests = Digests(file)
    if digest and (found := digests.head_digest()) != digest:
        raise DamagedError(f"its digest is {found}, {digest} was promised: its bytes are damaged")
    return digests


def check_shard(file: memoryview, digest: str) -> None:
    """Is every byte of this whole shard what `digest` says? Raises DamagedError. Takes a few cores: somebody waits."""
    digests = check_head(file, digest)
    first = len(digests.head)
    each = BLOCK_BYTES * -(-(len(file) - first) // (BLOCK_BYTES * _THREADS)) or BLOCK_BYTES

    def part(start: int) -> None:
        digests.check(start, file[start : start + each])

    with ThreadPoolExecutor(_THREADS, "everstep-check") as threads:
        for _ in threads.map(part, range(first, len(file), each)):
            pass
