"""Many tensors of one size, wherever they are in memory, to and from rows that follow each other: a call for many.

A call for each tensor takes longer than its bytes when these are few. torch.index_select copies the chosen rows of a
matrix by all of torch's threads, numpy's assignment to chosen rows takes one and lets go of the interpreter's lock. The
matrix is this process's memory: a row begins at every element and reaches as far as a tensor does, so that a tensor's
address is the number of a row; no other bytes are touched.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from everstep.runtime.checkpoint.shard.layout import TensorInfo

SMALL_ELEMENTS = 32768
"""Elements below which torch copies a tensor by one thread (at::internal::GRAIN_SIZE), and a row at once."""
MIN_ROWS = 16
"""Tensors from which on the call is worth it."""
_KINDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_on_cpu, _start, _size = attrgetter("is_cpu"), attrgetter("start"), attrgetter("size")


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

    @property
    def end(self) -> int:
        """The byte of the shard after the first byte of the last one."""
        return self.start + (len(self.chosen) - 1) * self.pitch + 1

    def copy_to(self, shard: memoryview) -> None:
        """All into their places. The tensors must be where they were when this was made."""
        torch.index_select(self.memory, 0, self.chosen, out=self._view(shard))

    def copier_from(self, shard: memoryview) -> Callable[[int, int], Callable[[], None]]:
        """To copy those that begin between two bytes of the shard from their places, by the thread that calls it."""
        memory, chosen, within = self.memory.numpy(), self.chosen.numpy(), self._view(shard).numpy()
        start, pitch, count = self.start, self.pitch, len(chosen)

        def copies(begin: int, end: int) -> Callable[[], None]:
            first, last = max(0, (begin - start + pitch - 1) // pitch), min(count, (end - start + pitch - 1) // pitch)
            return partial(memory.__setitem__, chosen[first:last], within[first:last])

        return copies

    def _view(self, shard: memoryview) -> torch.Tensor:
        kind, (count, elements) = self.memory.dtype, (len(self.chosen), self.memory.shape[1])
        reach = (count - 1) * self.pitch // kind.itemsize + elements
        flat = torch.frombuffer(shard, dtype=kind, offset=self.start, count=reach)
        return flat.as_strided((count, elements), (self.pitch // kind.itemsize, 1))


def group_rows(places: Sequence[TensorInfo], tensors: Sequence[torch.Tensor]) -> tuple[list[Rows], list[int]]:
    """Those of the tensors, which are in the shard's order, that are worth a call for many; the numbers of the others.
    Both in the shard's order."""
    starts, sizes = int_array(_start, places), int_array(_size, places)
    plain = matches_shard_bytes(tensors) & (
        int_array(torch.Tensor.is_complex, tensors) == 0
    )  # A walk does not see them conjugated.
    plain &= (int_array(torch.Tensor.numel, tensors) < SMALL_ELEMENTS) & (sizes > 0)
    ends = np.flatnonzero((np.diff(sizes) != 0) | (np.diff(plain) != 0)) + 1
    every: list[Rows] = []
    others: list[int] = []
    for group in np.split(np.arange(len(places)), ends):
        rows = None
        if len(group) >= MIN_ROWS and plain[group[0]]:
            rows = _make_rows(starts[group], [tensors[n] for n in group.tolist()], int(sizes[group[0]]))
        if rows is None:
            others += group.tolist()
        else:
            every.append(rows)
    return every, others


def matches_shard_bytes(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.bool_]:
    """Which are in this process's memory, byte for byte what they are in a shard?"""
    facts = (_on_cpu, torch.Tensor.is_contiguous, torch.Tensor.is_neg, torch.Tensor.is_conj)
    on_cpu, contiguous, neg, conj = (int_array(fact, tensors) != 0 for fact in facts)
    return on_cpu & contiguous & ~neg & ~conj


def int_array(fact: Callable[[Any], int], of: Sequence[Any]) -> npt.NDArray[np.int64]:
    """One of each."""
    return np.fromiter(map(fact, of), np.int64, len(of))


def _make_rows(starts: npt.NDArray[np.int64], tensors: list[torch.Tensor], size: int) -> Rows | None:
    """None: they do not stand at equal distances, or not aligned, or are of the same bytes."""
    pitch = int(starts[1] - starts[0])
    addresses = int_array(torch.Tensor.data_ptr, tensors)
    base = int(addresses.min())
    distances = addresses - base
    unit = int(np.gcd.reduce([*distances.tolist(), size, pitch, int(starts[0])]))
    kind = next(kind for kind in _KINDS if unit % kind.itemsize == 0)
    elements = size // kind.itemsize
    if elements >= SMALL_ELEMENTS or pitch < size or (np.diff(starts) != pitch).any():
        return None
    reach = (ctypes.c_ubyte * (int(distances.max()) + size)).from_address(base)
    flat = torch.frombuffer(reach, dtype=kind)
    memory = flat.as_strided((len(flat) - elements + 1, elements), (1, 1))
    return Rows(memory, torch.from_numpy(distances // kind.itemsize), int(starts[0]), pitch)
