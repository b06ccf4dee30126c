"""Sharded tensors: which part of the whole tensor a rank holds, and how parts make up another part.

A box is an offset and a size in each dimension of the whole tensor. Nothing here communicates.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch

from everstep.runtime.checkpoint.errors import StateError

T = TypeVar("T")
_UNSHARDED_TYPES = {torch.Tensor, torch.nn.Parameter}


class Box(NamedTuple):
    """A part of a tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """No element is in it."""
        return 0 in self.shape

    def intersect(self, other: "Box") -> "Box | None":
        """What is in both; None: nothing."""
        start = tuple(map(max, self.offset, other.offset))
        end = tuple(map(min, self.end(), other.end()))
        if any(a >= b for a, b in zip(start, end, strict=True)):
            return None
        return Box(start, tuple(b - a for a, b in zip(start, end, strict=True)))

    def end(self) -> tuple[int, ...]:
        """The first index behind it, in each dimension."""
        return tuple(a + b for a, b in zip(self.offset, self.shape, strict=True))

    def subtract(self, other: "Box") -> Iterator["Box"]:
        """What is left of this box when `other`, a part of it, is cut out: boxes that do not overlap."""
        offset, shape = list(self.offset), list(self.shape)
        for axis in range(len(shape)):
            before = other.offset[axis] - offset[axis]
            after = offset[axis] + shape[axis] - other.offset[axis] - other.shape[axis]
            for start, size in ((offset[axis], before), (other.end()[axis], after)):
                if size:
                    yield Box((*offset[:axis], start, *offset[axis + 1 :]), (*shape[:axis], size, *shape[axis + 1 :]))
            offset[axis], shape[axis] = other.offset[axis], other.shape[axis]

    def slices_in(self, within: "Box") -> tuple[slice, ...]:
        """Where it lies in a tensor that holds `within`."""
        return tuple(
            slice(a - b, a - b + size) for a, b, size in zip(self.offset, within.offset, self.shape, strict=True)
        )


class TensorPart(NamedTuple):
    """What one rank holds of a tensor."""

    whole: tuple[int, ...]
    """Shape of the tensor as all ranks together hold it."""
    box: Box


def whole_part(shape: Iterable[int]) -> TensorPart:
    """All of a tensor."""
    every = tuple(shape)
    return TensorPart(every, Box((0,) * len(every), every))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor, sharing its memory; any other tensor as it is. Without gradients: a
    DTensor would make a new tensor else."""
    if _is_dtensor(tensor):
        return tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]
    if _is_fsdp1(tensor):
        shard = _local_shard(tensor)
        return shard.tensor if shard else torch.empty((0, *tensor.shape[1:]), dtype=tensor.dtype)
    return tensor


def local_parts(values: list[Any]) -> list[torch.Tensor] | None:
    """`local` of each, quickly; None where one is no tensor, or one of another kind than training makes. The list
    itself where all are whole."""
    kinds = set(map(type, values))
    if kinds and kinds <= _UNSHARDED_TYPES:
        return values
    dtensor = _dtensor_class()
    if dtensor not in kinds or not kinds <= {*_UNSHARDED_TYPES, dtensor}:
        return None
    return [value.to_local() if type(value) is dtensor else value for value in values]


def part_of(tensor: torch.Tensor) -> TensorPart:
    """Which part of the whole tensor `local(tensor)` is."""
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
    """Does each of several ranks hold its own part, or its own copy, of this tensor? Alike on all of them."""
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
    """The class, which is not imported for that: without the import there is no such tensor."""
    kinds = sys.modules.get("torch.distributed.tensor")
    return kinds.DTensor if kinds is not None else None


def _is_fsdp1(tensor: Any) -> bool:
    kinds = sys.modules.get("torch.distributed._shard.sharded_tensor")
    return kinds is not None and isinstance(tensor, kinds.ShardedTensor)


def _local_shard(tensor: Any) -> Any:
    """FSDP1 gives each rank one part of the first dimension, the last ranks none when it is short."""
    shards = tensor.local_shards()
    if len(shards) > 1 or (shards and is_sharded_kind(shards[0].tensor)):
        raise StateError(f"a ShardedTensor with {len(shards)} parts on a rank, or of sharded parts; use DTensor for it")
    return shards[0] if shards else None


def cover(wanted: Box, held: Iterable[tuple[T, Box]]) -> tuple[list[tuple[T, Box]], list[Box]]:
    """Which parts of `wanted` to take from whom, each element once, the first that has it; and what nobody has."""
    taken, missing = [], [] if wanted.is_empty else [wanted]
    for owner, box in held:
        left = []
        for part in missing:
            common = part.intersect(box)
            if common is None:
                left.append(part)
            else:
                taken.append((owner, common))
                left.extend(part.subtract(common))
        missing = left
        if not missing:
            break
    return taken, missing
