"""Sharded tensors: the part of the whole tensor that a rank holds, and how to assemble a part from other parts.

Nothing here communicates.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch

from everstep.runtime.checkpoint.errors import StateError

T = TypeVar("T")
_UNSHARDED_TYPES = {torch.Tensor, torch.nn.Parameter}


class Box(NamedTuple):
    """A rectangular region of a tensor: offset and size in each dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """True if it has no elements."""
        return 0 in self.shape

    def intersect(self, other: "Box") -> "Box | None":
        """The region common to both; None if there is none."""
        start = tuple(map(max, self.offset, other.offset))
        end = tuple(map(min, self.end(), other.end()))
        if any(a >= b for a, b in zip(start, end, strict=True)):
            return None
        return Box(start, tuple(b - a for a, b in zip(start, end, strict=True)))

    def end(self) -> tuple[int, ...]:
        """The first index after it, in each dimension."""
        return tuple(a + b for a, b in zip(self.offset, self.shape, strict=True))

    def subtract(self, other: "Box") -> Iterator["Box"]:
        """This region without `other`, which lies within it, as regions that do not overlap."""
        offset, shape = list(self.offset), list(self.shape)
        for axis in range(len(shape)):
            before = other.offset[axis] - offset[axis]
            after = offset[axis] + shape[axis] - other.offset[axis] - other.shape[axis]
            for start, size in ((offset[axis], before), (other.end()[axis], after)):
                if size:
                    yield Box((*offset[:axis], start, *offset[axis + 1 :]), (*shape[:axis], size, *shape[axis + 1 :]))
            offset[axis], shape[axis] = other.offset[axis], other.shape[axis]

    def slices_in(self, within: "Box") -> tuple[slice, ...]:
        """Its position in a tensor that holds the region `within`."""
        return tuple(
            slice(a - b, a - b + size) for a, b, size in zip(self.offset, within.offset, self.shape, strict=True)
        )


class TensorPart(NamedTuple):
    """The part of a tensor that one rank holds."""

    whole: tuple[int, ...]
    """Shape of the tensor over all ranks."""
    box: Box


def whole_part(shape: Iterable[int]) -> TensorPart:
    """The part that is the whole tensor."""
    every = tuple(shape)
    return TensorPart(every, Box((0,) * len(every), every))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor, sharing its memory; any other tensor itself. Call it without gradients, or
    a DTensor creates a new tensor."""
    if _is_dtensor(tensor):
        return tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]
    if _is_fsdp1(tensor):
        shard = _local_shard(tensor)
        return shard.tensor if shard else torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype, device="cpu")
    return tensor


def local_parts(values: list[Any]) -> list[torch.Tensor] | None:
    """`local_part` of each, quickly. Returns the list itself if all tensors are whole. Returns None if a value is not a
    Tensor, Parameter or DTensor."""
    kinds = set(map(type, values))
    if kinds and kinds <= _UNSHARDED_TYPES:
        return values
    dtensor = _dtensor_class()
    if dtensor not in kinds or not kinds <= {*_UNSHARDED_TYPES, dtensor}:
        return None
    return [value.to_local() if type(value) is dtensor else value for value in values]


def part_of(tensor: torch.Tensor) -> TensorPart:
    """The part of the whole tensor that `local_part(tensor)` is."""
    every = tuple(tensor.shape)
    if _is_fsdp1(tensor):
        if shard := _local_shard(tensor):
            return TensorPart(every, Box(tuple(shard.metadata.shard_offsets), tuple(shard.metadata.shard_sizes)))
        return TensorPart(every, Box((0,) * len(every), (0, *every[1:])))
    if not _is_dtensor(tensor):
        return whole_part(every)
    from torch.distributed.checkpoint.planner_helpers import _create_chunk_list

    (chunk,) = _create_chunk_list(tensor)
    return TensorPart(every, Box(tuple(chunk.offsets), tuple(chunk.sizes)))


def is_distributed(tensor: Any) -> bool:
    """Does each of several ranks hold its own part, or its own copy? The answer is the same on all ranks."""
    if _is_fsdp1(tensor):
        return torch.distributed.get_world_size(tensor._process_group) > 1
    return _is_dtensor(tensor) and tensor.device_mesh.size() > 1


def is_sharded_kind(tensor: Any) -> bool:
    """Is it a DTensor (FSDP2, tensor parallelism) or a ShardedTensor (FSDP1's SHARDED_STATE_DICT)?"""
    return _is_dtensor(tensor) or _is_fsdp1(tensor)


def _is_dtensor(tensor: Any) -> bool:
    kind = _dtensor_class()
    return kind is not None and isinstance(tensor, kind)


def _dtensor_class() -> type | None:
    """The class DTensor, or None. It is not imported here: unless it was imported elsewhere, no such tensor exists."""
    kinds = sys.modules.get("torch.distributed.tensor")
    return kinds.DTensor if kinds is not None else None


def _is_fsdp1(tensor: Any) -> bool:
    kinds = sys.modules.get("torch.distributed._shard.sharded_tensor")
    return kinds is not None and isinstance(tensor, kinds.ShardedTensor)


def _local_shard(tensor: Any) -> Any:
    """FSDP1 gives each rank one part of the first dimension. The last ranks may get none."""
    shards = tensor.local_shards()
    if len(shards) > 1 or (shards and is_sharded_kind(shards[0].tensor)):
        raise StateError(f"a ShardedTensor with {len(shards)} parts on a rank, or of sharded parts; use DTensor for it")
    return shards[0] if shards else None


def cover(needed_box: Box, shards: Iterable[tuple[T, Box]]) -> tuple[list[tuple[T, Box]], list[Box]]:
    """Choose for each element of `needed_box` the first holder that has it. Returns (holder, region) pairs, and the
    regions that no holder has."""
    overlaps, missing = [], [] if needed_box.is_empty else [needed_box]
    for owner, box in shards:
        parts_left = []
        for part in missing:
            common = part.intersect(box)
            if common is None:
                parts_left.append(part)
            else:
                overlaps.append((owner, common))
                parts_left.extend(part.subtract(common))
        missing = parts_left
        if not missing:
            break
    return overlaps, missing
