"""Many tensors of one size, wherever they are in memory, into rows that follow each other: one call for all of them.

A call for each tensor takes longer than its bytes when these are few. torch.index_select copies the chosen rows of a
matrix by all of torch's threads. The matrix is this process's memory: a row begins at every element and reaches as far
as a tensor does, so that a tensor's address is the number of a row; no other bytes are touched.
"""

import ctypes
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from runtime.checkpoint.layout import Layout

SMALL = 32768
"""Elements below which torch copies a tensor by one thread (at::internal::GRAIN_SIZE), and a row at once."""
LEAST = 16
"""Tensors from which on the call is worth it."""
_KINDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class Rows(NamedTuple):
    """Tensors of equally many bytes that stand in a shard at equal distances."""

    memory: torch.Tensor
    """(rows, elements): memory from the lowest of their addresses on, in overlapping rows."""
    chosen: torch.Tensor
    """Which of these rows they are, int64, in the shard's order."""
    start: int
    """The first one's first byte in the shard."""
    pitch: int
    """Bytes from one to the next in the shard."""

    def copy_to(self, shard: memoryview) -> None:
        """Into their places. The tensors must be where they were when this was made."""
        kind, (count, elements) = self.memory.dtype, (len(self.chosen), self.memory.shape[1])
        reach = (count - 1) * self.pitch // kind.itemsize + elements
        flat = torch.frombuffer(shard, dtype=kind, offset=self.start, count=reach)
        target = flat.as_strided((count, elements), (self.pitch // kind.itemsize, 1))
        torch.index_select(self.memory, 0, self.chosen, out=target)


def rows_of(layout: Layout, names: Iterable[str], tensors: Mapping[str, torch.Tensor]) -> tuple[list[Rows], list[str]]:
    """Those of the named tensors, which are in the shard's order, that are worth one call; the names of the others."""
    every: list[Rows] = []
    others: list[str] = []
    for (size, plain), same in groupby(names, key=lambda name: (layout.places[name].size, _plain(tensors[name]))):
        group = list(same)
        starts = np.array([layout.places[name].start for name in group])
        rows = _rows(starts, [tensors[name] for name in group], size) if plain and len(group) >= LEAST else None
        if rows is None:
            others += group
        else:
            every.append(rows)
    return every, others


def _plain(tensor: torch.Tensor) -> bool:
    """Is it small, and its bytes in memory what they are in a shard? (Complex ones may be conjugated.)"""
    plain = tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_complex())
    return plain and 0 < tensor.numel() < SMALL


def _rows(starts: np.ndarray, tensors: list[torch.Tensor], size: int) -> Rows | None:
    """None: they do not stand at equal distances, or not aligned."""
    pitch = int(starts[1] - starts[0])
    addresses = np.fromiter(map(torch.Tensor.data_ptr, tensors), np.int64, len(tensors))
    base = int(addresses.min())
    distances = addresses - base
    unit = int(np.gcd.reduce([*distances.tolist(), size, pitch, int(starts[0])]))
    kind = next(kind for kind in _KINDS if unit % kind.itemsize == 0)
    elements = size // kind.itemsize
    if elements >= SMALL or (np.diff(starts) != pitch).any():
        return None
    reach = (ctypes.c_ubyte * (int(distances.max()) + size)).from_address(base)
    flat = torch.frombuffer(reach, dtype=kind)
    memory = flat.as_strided((len(flat) - elements + 1, elements), (1, 1))
    return Rows(memory, torch.from_numpy(distances // kind.itemsize), int(starts[0]), pitch)
