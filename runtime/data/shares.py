"""How the ranks share one global batch: a pure function of its size, the rank and the world size.

Whatever the world size, a global batch is the same samples. A rank that must take more of them than `micro_batch`
takes them in several parts: gradient accumulation, with the same number of parts on every rank, so that each rank
takes part in each all-reduce.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """Samples of the stream that a rank computes in one forward and backward pass."""

    start: int
    end: int
    """Positions start..end-1 in the stream. Never empty: a rank without a sample reads the batch's first one."""
    weight: float
    """Multiply the mean loss by it, and sum over the parts: DDP's mean over ranks is the mean over the global batch.
    0 for a sample that another rank applies."""

    @property
    def applied(self) -> range:
        """Positions of the samples that this rank applies: none at weight 0."""
        return range(self.start, self.end) if self.weight else range(0)


def parts_of(start: int, size: int, rank: int, world_size: int, micro_batch: int | None = None) -> list[Part]:
    """This rank's parts of the `size` samples from position `start` on. The parts in rank order are the batch.

    `micro_batch`: the largest part; None: all in one. Raises ValueError for a rank outside of the world.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of a world of {world_size}")
    first, last = start + rank * size // world_size, start + (rank + 1) * size // world_size
    return divide(start, first, last, -(-size // world_size), world_size / size, micro_batch)


def divide(start: int, first: int, last: int, largest: int, weight: float, micro_batch: int | None) -> list[Part]:
    """The parts of a rank that has positions first..last-1 of a batch from `start` on.

    `largest`: samples of the rank that has the most. `weight`: of one sample.
    """
    length = min(micro_batch or largest, largest)
    parts = []
    for begin in range(first, first + largest, length):
        end = min(begin + length, last)
        if begin < end:
            parts.append(Part(begin, end, (end - begin) * weight))
        else:
            parts.append(Part(start, start + 1, 0.0))
    return parts
