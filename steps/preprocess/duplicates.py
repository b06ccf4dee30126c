"""Documents whose texts came before in the input: the only data here that Spark shuffles.

Each shard has written the hashes of its documents. They go, in large slices, to the task for their kind (a range of
hashes), which answers which documents of which shards are repetitions. So no process ever holds more than one kind.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from everstep.runtime import text

if TYPE_CHECKING:
    from pyspark import SparkContext

PER_KIND = 1 << 20
"""Approximate number of hashes per task: 16 bytes each, and as much again to sort them."""
_PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])


class Hashes(NamedTuple):
    """The file with the hashes of one part's documents, in their order. Parts are numbered in the input's order."""

    number: int
    file: str
    count: int


class Slice(NamedTuple):
    """The hashes of one kind in one part: positions in the part (uint32), and the hashes as bytes."""

    number: int
    positions: bytes
    hashes: bytes


def find_duplicates(context: "SparkContext", parts: Sequence[Hashes]) -> dict[int, np.ndarray]:
    """Positions of documents whose hash came before, ascending, uint32; by part number, for parts that have any."""
    kinds = max(1, -(-sum(part.count for part in parts) // PER_KIND))
    slices = context.parallelize(parts, min(len(parts), max(1, kinds))).flatMap(partial(by_kind, kinds))
    duplicates: dict[int, list[np.ndarray]] = {}
    for number, positions in slices.groupByKey(kinds).flatMap(_later_of_group).collect():
        duplicates.setdefault(number, []).append(np.frombuffer(positions, np.uint32))
    return {number: np.sort(np.concatenate(each)) for number, each in duplicates.items()}


def by_kind(kinds: int, part: Hashes) -> Iterator[tuple[int, Slice]]:
    """The hashes of a part, divided by kind."""
    with text.open_bytes(part.file) as file:
        hashes = np.frombuffer(file.readall(), _PAIR)
    kind = hashes["low"] % np.uint64(kinds)
    for number in range(kinds):
        (positions,) = np.nonzero(kind == number)
        if len(positions):
            yield number, Slice(part.number, positions.astype(np.uint32).tobytes(), hashes[positions].tobytes())


def _later_of_group(group: tuple[int, Iterable[Slice]]) -> list[tuple[int, bytes]]:
    return [(number, positions.tobytes()) for number, positions in later_positions(group[1])]


def later_positions(slices: Iterable[Slice]) -> list[tuple[int, np.ndarray]]:
    """Part numbers, and the positions in each whose hash occurs earlier: pure."""
    slices_in_order = sorted(slices, key=lambda slice_: slice_.number)
    hashes = np.concatenate([np.frombuffer(slice_.hashes, _PAIR) for slice_ in slices_in_order])
    positions = np.concatenate([np.frombuffer(slice_.positions, np.uint32) for slice_ in slices_in_order])
    numbers = np.repeat(
        [slice_.number for slice_ in slices_in_order], [len(slice_.positions) // 4 for slice_ in slices_in_order]
    )
    order = np.lexsort((hashes["low"], hashes["high"]))  # equal hashes stay in the order of the input
    repeated = np.zeros(len(order), bool)
    repeated[1:] = hashes[order][1:] == hashes[order][:-1]
    positions_dropped = np.sort(order[repeated])
    return [
        (int(number), positions[positions_dropped[numbers[positions_dropped] == number]])
        for number in np.unique(numbers[positions_dropped])
    ]
