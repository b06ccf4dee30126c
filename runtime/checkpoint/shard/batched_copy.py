"""Copy many small tensors of one size to or from equidistant rows of a shard, in one call.

For small tensors a call costs more than the bytes. torch.index_select copies the selected rows of a matrix by all of
torch's threads. numpy's assignment to selected rows uses one thread and releases the interpreter lock. The matrix is
this process's memory: a row starts at every element and is as long as a tensor, so the row number is the tensor's
address. No other bytes are touched.
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
"""torch copies a tensor with fewer elements by one thread (at::internal::GRAIN_SIZE), and a row in one step."""
MIN_ROWS = 16
"""Fewer tensors are not worth the call."""
_KINDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_on_cpu, _start, _size = attrgetter("is_cpu"), attrgetter("start"), attrgetter("size")


class Rows(NamedTuple):
    """Tensors of equal size that stand in a shard at equal distances."""

    memory: torch.Tensor
    """(rows, elements): memory from the lowest address on, as overlapping rows."""
    chosen: torch.Tensor
    """Row numbers of the tensors, int64, in the shard's order."""
    start: int
    """First byte of the first tensor in the shard."""
    pitch: int
    """Bytes between the starts of two tensors in the shard."""

    def copy_to(self, shard: memoryview) -> None:
        """Copy all tensors into the shard. They must not have moved since the rows were made."""
        torch.index_select(self.memory, 0, self.chosen, out=self._view(shard))

    def copies_from(self, shard: memoryview, threads: int) -> list[Callable[[], None]]:
        """The copies of all tensors out of the shard, for so many threads."""
        memory, rows_chosen, within = self.memory.numpy(), self.chosen.numpy(), self._view(shard).numpy()
        each = -(-len(rows_chosen) // threads)
        return [
            partial(memory.__setitem__, rows_chosen[at : at + each], within[at : at + each])
            for at in range(0, len(rows_chosen), each)
        ]

    def _view(self, shard: memoryview) -> torch.Tensor:
        kind, (count, elements) = self.memory.dtype, (len(self.chosen), self.memory.shape[1])
        reach = (count - 1) * self.pitch // kind.itemsize + elements
        flat = torch.frombuffer(shard, dtype=kind, offset=self.start, count=reach)
        return flat.as_strided((count, elements), (self.pitch // kind.itemsize, 1))


def group_rows(places: Sequence[TensorInfo], tensors: Sequence[torch.Tensor]) -> tuple[list[Rows], list[int]]:
    """Divide the tensors, given in the shard's order, into rows worth a batched copy and the indices of the rest, both
    in the shard's order."""
    starts, sizes = int_array(_start, places), int_array(_size, places)
    plain = matches_shard_bytes(tensors) & (
        int_array(torch.Tensor.is_complex, tensors) == 0
    )  # The traversal does not notice conjugation.
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
    """Mask of the tensors that are in this process's memory, byte for byte as in a shard."""
    facts = (_on_cpu, torch.Tensor.is_contiguous, torch.Tensor.is_neg, torch.Tensor.is_conj)
    on_cpu, contiguous, neg, conj = (int_array(fact, tensors) != 0 for fact in facts)
    return on_cpu & contiguous & ~neg & ~conj


def int_array(fact: Callable[[Any], int], of: Sequence[Any]) -> npt.NDArray[np.int64]:
    """`fact` of each element."""
    return np.fromiter(map(fact, of), np.int64, len(of))


def _make_rows(starts: npt.NDArray[np.int64], tensors: list[torch.Tensor], size: int) -> Rows | None:
    """None if they are not equidistant, not aligned, or share bytes."""
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
