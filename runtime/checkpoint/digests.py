"""The digests of a shard: one of each block of its data, in a table in its head, and one of the head.

The head is what stands before the data: the header, the JSON part of the state, the table. Its digest says what every
byte of the shard must be, and a reader of some blocks checks just these. The agent fills the table in once the worker
has staged the shard; until then it is zeros.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import xxhash

from runtime.checkpoint.errors import RestoreError

BLOCK = 4 << 20
"""Bytes of data under one digest; the last block may be shorter."""
TABLE = "__everstep_digests__"
"""The tensor of the file that is the table: uint8, the last one before the data."""
WIDTH = 16
_THREADS = min(4, os.cpu_count() or 1)
_FOUND = re.compile(rb'"__everstep_digests__":\{"dtype":"U8","shape":\[\d+\],"data_offsets":\[(\d+),(\d+)\]\}')


def table_size(data_bytes: int) -> int:
    """Bytes that the digests of so much data take."""
    return WIDTH * -(-data_bytes // BLOCK)


class Digests:
    """The table of one shard, of whose bytes at least the head is there."""

    def __init__(self, file: memoryview) -> None:
        """Raises RestoreError when this is no head of a shard."""
        header = 8 + int.from_bytes(file[:8], "little")
        found = _FOUND.search(bytes(file[:header])) if header <= len(file) else None
        if found is None or header + int(found[2]) > len(file):
            raise RestoreError("not a shard of Everstep, or the end of its head is missing: no digests are in it")
        self._table = file[header + int(found[1]) : header + int(found[2])]
        self.head = file[: header + int(found[2])]
        """Everything before the data."""

    def of_head(self) -> str:
        """xxh3_128 of the head as 32 hex digits: the shard's digest."""
        return xxhash.xxh3_128(self.head).hexdigest()

    def fill(self, file: memoryview) -> None:
        """Compute the table from the whole shard's data. Other threads run meanwhile."""
        data = file[len(self.head) :]
        for number, start in enumerate(range(0, len(data), BLOCK)):
            digest = xxhash.xxh3_128(data[start : start + BLOCK]).digest()
            self._table[number * WIDTH : (number + 1) * WIDTH] = digest

    def check(self, start: int, data: memoryview) -> None:
        """Raises RestoreError when `data` is not what stood in the file from byte `start` on: whole blocks."""
        first = (start - len(self.head)) // BLOCK
        for number, at in enumerate(range(0, len(data), BLOCK), first):
            digest = xxhash.xxh3_128(data[at : at + BLOCK]).digest()
            if digest != bytes(self._table[number * WIDTH : (number + 1) * WIDTH]):
                raise RestoreError(
                    f"the digest of bytes {start + at} to {start + min(at + BLOCK, len(data))} is {digest.hex()}, "
                    "not what its head says: they are damaged"
                )

    def blocks(self, start: int, end: int, size: int) -> tuple[int, int]:
        """The whole blocks that hold bytes `start` to `end` of a file of `size` bytes, as first byte and end."""
        base = len(self.head)
        return base + (start - base) // BLOCK * BLOCK, min(size, base - (base - end) // BLOCK * BLOCK)


def seal(file: memoryview) -> str:
    """Fill the table of a whole shard; returns the shard's digest. Raises RestoreError when it is none."""
    digests = Digests(file)
    digests.fill(file)
    return digests.of_head()


def checked_head(file: memoryview, digest: str) -> Digests:
    """The table of a shard whose head is here, if its digest is that one ("" for any). Raises RestoreError."""
    digests = Digests(file)
    if digest and (found := digests.of_head()) != digest:
        raise RestoreError(f"its digest is {found}, {digest} was promised: its bytes are damaged")
    return digests


def check(file: memoryview, digest: str) -> None:
    """Is every byte of this whole shard what `digest` says? Raises RestoreError. Takes a few cores: somebody waits."""
    digests = checked_head(file, digest)
    first = len(digests.head)
    each = BLOCK * -(-(len(file) - first) // (BLOCK * _THREADS)) or BLOCK

    def part(start: int) -> None:
        digests.check(start, file[start : start + each])

    with ThreadPoolExecutor(_THREADS, "everstep-check") as threads:
        for _ in threads.map(part, range(first, len(file), each)):
            pass
