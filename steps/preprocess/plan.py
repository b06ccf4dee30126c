"""Which task reads which bytes: pure.

Every document belongs to one task, wherever the cuts are. Shards in the order of their ranges give the documents in the
order of the input.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from everstep.runtime.text import Extent, Piece, piece_of

SMALLEST = 1 << 20
LARGEST = 64 << 20
"""Average bytes of a task."""
PER_CORE = 4
"""Tasks per core, so that an uneven task at the end does not keep the others waiting for long."""


@dataclass(frozen=True)
class Shard:
    """What one task reads, in order, and the name of its output."""

    split: str
    number: int
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}"


def task_count(total: int, cores: int) -> int:
    """Few, large tasks: PER_CORE for each core, within SMALLEST and LARGEST bytes each, equally many for each core."""
    least, most = -(-total // LARGEST), total // SMALLEST
    count = min(max(least, PER_CORE * cores), max(1, most))
    return count if count < cores else -(-count // cores) * cores


def shards(split: str, extents: Sequence[Extent], count: int) -> list[Shard]:
    """Cut the extents into at most `count` shards, at their borders.

    Each shard is a little smaller than the one before, the first three times as large as the last, so the cores finish
    together.
    """
    total = sum(extent.size for extent in extents)
    cuts = [total * number * (3 * count - number) // (2 * count * count) for number in range(count + 1)]
    planned_shards = []
    for first, last in pairwise(cuts):
        pieces, offset = [], 0
        for extent in extents:
            start, end = _border(extent, first - offset), _border(extent, last - offset)
            if start < end:
                pieces.append(piece_of(extent, start, end))
            offset += extent.size
        if pieces:
            planned_shards.append(Shard(split, len(planned_shards), tuple(pieces)))
    return planned_shards


def _border(extent: Extent, at: int) -> int:
    """The first border at or after `at`."""
    at = min(max(at, 0), extent.size)
    return at if extent.borders is None else extent.borders[bisect_left(extent.borders, at)]
