"""Which task reads which bytes: pure.

A corpus file is a stream of lines (bytes counted without compression). A line belongs to the task in whose range its
first byte lies, so every line has one task, wherever the cuts fall, and shards in the order of their ranges are the
documents in the order of the corpus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SMALLEST = 1 << 20
LARGEST = 64 << 20
PER_CORE = 4
"""Tasks per core, so that an uneven one at the end does not keep the others waiting long."""


@dataclass(frozen=True)
class Piece:
    """Bytes [start, end) of the lines of one file."""

    path: str
    start: int
    end: int


@dataclass(frozen=True)
class Shard:
    """What one task reads, in order, and the name of what it writes."""

    split: str
    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}"


def task_count(total: int, cores: int) -> int:
    """Few, large tasks: PER_CORE for each core, within SMALLEST and LARGEST bytes each."""
    size = min(LARGEST, max(SMALLEST, total // (PER_CORE * cores)))
    return max(1, -(-total // size))


def shards(split: str, files: Sequence[tuple[str, int]], count: int) -> list[Shard]:
    """Cut `files` (path, bytes of lines) into at most `count` shards of about equal size."""
    total = sum(size for _, size in files)
    cuts = [total * number // count for number in range(count + 1)]
    planned = []
    for first, last in pairwise(cuts):
        pieces, offset = [], 0
        for path, size in files:
            start, end = max(first - offset, 0), min(last - offset, size)
            if start < end:
                pieces.append(Piece(path, start, end))
            offset += size
        if pieces:
            planned.append(Shard(split, len(planned), tuple(pieces)))
    return planned
