"""Lets torch.distributed.checkpoint read a checkpoint: for FSDP1, whose tensors only its own code can load.

    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict = {"model": model.state_dict()}
        dist_cp.load_state_dict(state_dict=state_dict, storage_reader=reader)
        optim_state = load_sharded_optimizer_state_dict(state_dict["model"], "optim", reader)

Keys are DCP's own: the paths of nested dicts joined with '.'. DCP expects values that are not tensors as bytes of
torch.save. They are made here, in memory, from the checkpoint's JSON.
"""

import io
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from everstep.runtime.checkpoint.shard.reshard import Shard, WantedTensor, gather
from everstep.runtime.checkpoint.state.flatten import decode
from everstep.runtime.checkpoint.state.parts import Box, TensorPart


class DcpReader(StorageReader):
    """Reads the ranges of a checkpoint's shards that DCP plans, and checks the digest of each block."""

    def __init__(self, shards: Iterable[Shard], inside: str) -> None:
        """DCP sees the dict at key `inside` of the saved state."""
        self._shards, self._inside = list(shards), inside
        state = decode(self._shards[0].saved["state"][inside], lambda name: torch.empty(0, device="meta"))
        self._flat, self._paths = flatten_state_dict(state)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: the checkpoint was chosen before the reader was made."""
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """No-op: it keeps no state between two reads."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Every key: the whole shape of a tensor and the parts in shards, or that it is not a tensor."""
        entries = {
            key: self._tensor(key) if isinstance(value, torch.Tensor) else BytesStorageMetadata()
            for key, value in self._flat.items()
        }
        return Metadata(entries, planner_data=self._paths)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """No-op: every rank reads for itself."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors and values of the plan. Raises RestoreError if no source has some part."""
        tensors: list[tuple[ReadItem, torch.Tensor]] = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                buffer = io.BytesIO()
                torch.save(self._flat[item.storage_index.fqn], buffer)
                buffer.seek(0)
                planner.load_bytes(item, buffer)
            else:
                tensors.append((item, planner.resolve_tensor(item).detach()))
        gather(self._shards, [self._wanted_tensor(item, tensor) for item, tensor in tensors])
        for item, tensor in tensors:
            planner.commit_tensor(item, tensor)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _path(self, key: str) -> str:
        return f"{self._inside}.{key}"

    def _pieces(self, key: str) -> list[TensorPart]:
        path = self._path(key)
        return [shard.layout.part(shard.name_by_path[path]) for shard in self._shards if path in shard.name_by_path]

    def _tensor(self, key: str) -> TensorStorageMetadata:
        pieces, shard = self._pieces(key), self._shards[0]
        kind = shard.layout.tensors[shard.name_by_path[self._path(key)]].dtype
        boxes = dict.fromkeys(piece.box for piece in pieces if not piece.box.is_empty)
        chunks = [ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.shape)) for box in boxes]
        return TensorStorageMetadata(TensorProperties(kind), torch.Size(pieces[0].whole), chunks)

    def _wanted_tensor(self, item: ReadItem, tensor: torch.Tensor) -> WantedTensor:
        index = item.storage_index
        start = index.offset or (0,) * len(item.storage_offsets)
        offset = tuple(a + b for a, b in zip(start, item.storage_offsets, strict=True))
        piece = TensorPart(self._pieces(index.fqn)[0].whole, Box(offset, tuple(item.lengths)))
        return WantedTensor(self._path(index.fqn), piece, tensor)
