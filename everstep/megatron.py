"""Checkpoints of Megatron-core models, with the names of Megatron-LM and of DLRover: in memory, at any parallel sizes.

    from everstep.megatron import StorageType, load_checkpoint, save_checkpoint

    iteration, flops = load_checkpoint(model, optimizer, opt_param_scheduler)
    ...
    save_checkpoint(iteration, model, optimizer, opt_param_scheduler, flops, storage_type=StorageType.MEMORY)

Each rank stages the main replicas among its parts (`sharded_state_dict`), so the state loads at other sizes of tensor,
pipeline and data parallelism. Random states are those of the rank at the same place; at other sizes they stay as they
are. `storage_type` is that of `everstep.flash_checkpoint`.

Source: Megatron-core, "dist_checkpointing package"; DLRover, "Flash Checkpoint", API for Megatron-LM.
"""

import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, merge, nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    apply_factory_merges,
    is_main_replica,
)
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess, save_preprocess
from megatron.core.dist_checkpointing.utils import extract_sharded_base

from everstep.flash_checkpoint import FlashCheckpoints, StorageType
from everstep.random_state import random_state, set_random_state
from everstep.runtime.checkpoint.errors import RestoreError, StateError
from everstep.runtime.checkpoint.shard.reshard import Shard, WantedTensor, gather, read_value
from everstep.runtime.checkpoint.state.parts import Box, TensorPart, cover
from everstep.runtime.checkpoint.state.stateful import prepare_optimizer
from everstep.session import current_or_first

__all__ = ["MegatronCheckpointer", "StorageType", "load_checkpoint", "save_checkpoint"]

REPLICAS = 2
"""The state itself and one peer's copy: what a job keeps unless its --peer-copies says otherwise."""


class MegatronCheckpointer(FlashCheckpoints):
    """Checkpoints of what `sharded_state_dict` describes."""

    _per_rank = True

    def save(self, step: int, sharded_state_dict: dict[str, Any], storage_type: StorageType = StorageType.DISK) -> None:
        """Save as of `step`; blocks training for one copy in memory. Call it on every rank. The dict is changed.

        Raises StateError, LinkError.
        """
        self.save_checkpoint(step, _main_replicas(sharded_state_dict), storage_type=storage_type)

    def load(self, sharded_state_dict: dict[str, Any]) -> dict[str, Any]:
        """The newest state in the form of `sharded_state_dict`, for this rank; {} if there is none.

        Raises RestoreError if the checkpoint lacks something of it.
        """
        shards = self._shards("")
        return _assemble(shards, sharded_state_dict) if shards else {}


def save_checkpoint(
    iteration: int,
    model: Any,
    optimizer: Any = None,
    opt_param_scheduler: Any = None,
    num_floating_point_operations_so_far: float = 0,
    *,
    storage_type: StorageType = StorageType.DISK,
    replica_count: int = REPLICAS,
    directory: str = "",
) -> None:
    """Save as of `iteration`; blocks training for one copy in memory. Call it on every rank.

    `model`: a module or Megatron's list of them. `optimizer`: Megatron's, or one of torch. Without an agent the store
    is `directory`, else EVERSTEP_STORE. `replica_count`: the state in this node's memory and its copies in
    that of others; the job's --peer-copies decides. Raises LinkError, and StateError if the job keeps fewer.
    """
    _check_replicas(replica_count)
    state = _sharded_state(model, optimizer, loading=False)
    state["scheduler"] = opt_param_scheduler.state_dict() if opt_param_scheduler is not None else None
    state["progress"] = {"iteration": iteration, "operations": num_floating_point_operations_so_far}
    _checkpointer(directory, _round()).save(iteration, state, storage_type)


def load_checkpoint(
    model: Any,
    optimizer: Any = None,
    opt_param_scheduler: Any = None,
    *,
    replica_count: int = REPLICAS,
    directory: str = "",
) -> tuple[int, float]:
    """Load the newest state. Returns its iteration and num_floating_point_operations_so_far; (0, 0) if there is none.

    Call it on every rank, after the parallel groups are made. Raises RestoreError, StateError.
    """
    _check_replicas(replica_count)
    loaded_state = _checkpointer(directory, _round()).load(_sharded_state(model, optimizer, loading=True))
    if not loaded_state:
        return 0, 0
    for name, module in _chunks(model).items():
        module.load_state_dict(loaded_state[name])
    if optimizer is not None:
        _load_optimizer(optimizer, loaded_state["optimizer"])
    if opt_param_scheduler is not None:
        opt_param_scheduler.load_state_dict(loaded_state["scheduler"])
    if loaded_state["random"] is not None:
        set_random_state([loaded_state["random"]])
    return int(loaded_state["progress"]["iteration"]), loaded_state["progress"]["operations"]


@lru_cache(maxsize=1)
def _checkpointer(directory: str, _: str) -> MegatronCheckpointer:
    """One for each round of this process."""
    return MegatronCheckpointer(directory)


def _round() -> str:
    return os.environ.get("EVERSTEP_ROUND", "")


def _check_replicas(count: int) -> None:
    link = current_or_first().context.link
    if link is not None and count > 1 + link.welcome.peer_copies:
        raise StateError(
            f"replica_count={count}: this job keeps the state and {link.welcome.peer_copies} of its copies in memory; "
            f"start it with --peer-copies {count - 1}"
        )


def _chunks(model: Any) -> dict[str, Any]:
    """Megatron-LM's names of the model's chunks, which is a list if the pipeline is interleaved. Without DDP's and
    Float16Module's wrappings, whose state_dict is that of the module inside."""
    modules = list(model) if isinstance(model, list | tuple) else [model]
    for number, module in enumerate(modules):
        while hasattr(module, "module"):
            module = module.module
        modules[number] = module
    return {"model" if len(modules) == 1 else f"model{number}": module for number, module in enumerate(modules)}


def _sharded_state(model: Any, optimizer: Any, loading: bool) -> dict[str, Any]:
    state: dict[str, Any] = {name: chunk.sharded_state_dict() for name, chunk in _chunks(model).items()}
    if optimizer is not None:
        state["optimizer"] = _sharded_optimizer(optimizer, state, loading)
    pipeline = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    tensor = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    place, sizes = zip(pipeline, tensor, strict=True)
    replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    random = None if loading else random_state()
    return {**state, "random": ShardedObject("random", random, sizes, place, replica)}


def _sharded_optimizer(optimizer: Any, model_state: dict[str, Any], loading: bool) -> dict[str, Any]:
    """Megatron's optimizers describe themselves. One of torch is described as Megatron's FP32Optimizer is, with one
    step for all parameters."""
    if hasattr(optimizer, "sharded_state_dict"):
        for part in _over_torch(optimizer):
            prepare_optimizer(part.optimizer, "optimizer")
        takes = inspect.signature(optimizer.sharded_state_dict).parameters
        more = {"metadata": _metadata(optimizer)} if takes.keys() & {"metadata", "kwargs"} else {}
        state = optimizer.sharded_state_dict(model_state, is_loading=loading, **more)
        for part in _over_torch(optimizer) if loading else ():
            _put_steps(part, _take_steps(part))
        return state
    prepare_optimizer(optimizer, "optimizer")
    state = optimizer.state_dict()
    steps = [parameter_state["step"] for parameter_state in state["state"].values() if "step" in parameter_state]
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    parameter_map: Any = get_param_id_to_sharded_param_map(model_state, parameters)
    optim_state_to_sharding_state(state, parameter_map, exclude_keys=("step",))
    if steps:
        state["state"]["common_step"] = steps[0]
    return state


def _load_optimizer(optimizer: Any, state: dict[Any, Any]) -> None:
    if not hasattr(optimizer, "sharded_state_dict"):
        step = state["state"].pop("common_step", None)
        if step is not None:
            for parameter_state in state["state"].values():
                parameter_state["step"] = step.clone() if isinstance(step, torch.Tensor) else step
    parts = _parts(optimizer)
    later = [
        (part, (state if len(parts) == 1 else state[number]).pop("param_state"))
        for number, part in enumerate(parts)
        if part in _over_torch(optimizer)
    ]
    optimizer.load_state_dict(state)
    for part, parameter_state in later:  # Loaded with the rest, it would fail over the steps.
        steps = _take_steps(part)
        part.load_parameter_state_from_fully_reshardable(parameter_state)
        _put_steps(part, steps)


def _parts(optimizer: Any) -> list[Any]:
    return getattr(optimizer, "chained_optimizers", [optimizer])


def _metadata(optimizer: Any) -> dict[str, Any]:
    """Have a DistributedOptimizer describe its state in the shapes of the parameters: it loads at any parallel sizes.

    It is gathered for that. Only data-parallel rank 0 stages it, so it suffices to gather it there, which takes groups
    of gloo. Optimizers of other kinds ignore all this, and a chain of them keeps the names that it had without.
    """
    to_first_rank = all(getattr(part, "data_parallel_group_gloo", None) is not None for part in _parts(optimizer))
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": to_first_rank,
    }


def _over_torch(optimizer: Any) -> list[Any]:
    """The DistributedOptimizers with one of torch inside: neither Transformer Engine nor Apex is installed. They need
    its state before the first step, and cannot load its steps with the rest."""
    parts = (part for part in _parts(optimizer) if hasattr(part, "gbuf_ranges"))
    return [part for part in parts if type(part.optimizer).__module__.startswith("torch.optim")]


def _take_steps(part: Any) -> list[torch.Tensor]:
    return [parameter_state.pop("step") for parameter_state in part.optimizer.state.values()]


def _put_steps(part: Any, steps: list[torch.Tensor]) -> None:
    """Each parameter gets its own. A DistributedOptimizer loads one for all, which torch would increase for each."""
    for parameter_state, step in zip(part.optimizer.state.values(), steps, strict=True):
        parameter_state["step"] = step.clone()


def _main_replicas(sharded_state_dict: dict[str, Any]) -> dict[str, Any]:
    """What this rank stages: the parts of which it is the main replica, where each belongs, and the common values."""
    sharded_state, common = save_preprocess(sharded_state_dict, validate_access_integrity=False)
    parts: dict[str, Any] = {}
    boxes: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    for sharded in nested_values(sharded_state):
        if not is_main_replica(sharded.replica_id):
            continue
        if isinstance(sharded, ShardedTensor):
            name = f"{sharded.key}@{'.'.join(map(str, sharded.global_offset))}"
            parts[name], boxes[name] = sharded.data, [sharded.key, *map(list, _box(sharded))]
        else:
            objects[sharded.unique_key] = sharded.data
    return {"parts": parts, "boxes": boxes, "objects": objects, "common": common}


def _box(tensor: ShardedTensor) -> Box:
    """Its region of the whole tensor."""
    return Box(tuple(tensor.global_offset), (*(1,) * tensor.prepend_axis_num, *tensor.local_shape))


class _Holder(NamedTuple):
    """A part in a checkpoint."""

    path: str
    box: Box


def _assemble(shards: list[Shard], sharded_state_dict: dict[str, Any]) -> dict[str, Any]:
    factories: Any
    local, nonpersistent, factories = load_preprocess(sharded_state_dict)
    local, _ = extract_sharded_base(local)
    holders, objects = _holders(shards), _objects(shards)
    wants: list[WantedTensor] = []

    def replace(sharded: ShardedTensor | ShardedObject) -> Any:
        if isinstance(sharded, ShardedObject):
            return _object(sharded, objects)
        device = sharded.data.device if sharded.data is not None else torch.device("cpu")
        tensor = torch.empty(sharded.local_shape, dtype=sharded.dtype, device=device)
        wants.extend(_wanted_parts(sharded, tensor, holders.get(sharded.key, ())))
        return tensor

    dict_list_map_inplace(replace, local)
    gather(shards, wants)
    state: Any = read_value(shards[0], shards[0].saved["state"]["saved"]["common"])
    merge(state, nonpersistent)
    merge(state, local)
    return apply_factory_merges(state, factories)


def _holders(shards: list[Shard]) -> dict[str, list[_Holder]]:
    """The parts of each tensor by its key."""
    holders: dict[str, list[_Holder]] = {}
    for shard in shards:
        for name, (key, offset, shape) in shard.saved["state"]["saved"]["boxes"].items():
            box = Box(tuple(offset), tuple(shape))
            holders.setdefault(key, []).append(_Holder(f"saved.parts.{name}", box))
    return holders


def _wanted_parts(sharded: ShardedTensor, tensor: torch.Tensor, holders: Iterable[_Holder]) -> Iterator[WantedTensor]:
    """The regions of `tensor`, each with the held part that it is read from. Raises RestoreError."""
    box = _box(sharded)
    covered, missing = cover(box, [(holder, holder.box) for holder in holders])
    if missing:
        part = list(missing[0].offset)
        raise RestoreError(f"{sharded.key}: the checkpoint has no part at {part}; does it belong to this model?")
    target = tensor.view(box.shape)
    for holder, region in covered:
        offset = tuple(a - b for a, b in zip(region.offset, holder.box.offset, strict=True))[sharded.prepend_axis_num :]
        shape = region.shape[sharded.prepend_axis_num :]
        shape_held = holder.box.shape[sharded.prepend_axis_num :]
        into = target[region.slices_in(box)][(0,) * sharded.prepend_axis_num]
        yield WantedTensor(holder.path, TensorPart(shape_held, Box(offset, shape)), into)


def _objects(shards: list[Shard]) -> dict[str, tuple[Shard, Any]]:
    return {key: (shard, json) for shard in shards for key, json in shard.saved["state"]["saved"]["objects"].items()}


def _object(sharded: ShardedObject, objects: dict[str, tuple[Shard, Any]]) -> Any:
    if sharded.unique_key in objects:
        return read_value(*objects[sharded.unique_key])
    if sharded.data is not None:
        raise RestoreError(
            f"{sharded.unique_key}: the checkpoint has no such object; was it saved with these parallel sizes?"
        )
    if sharded.key == "random" and not any(sharded.global_offset):
        print("everstep: other parallel sizes than the checkpoint's: random states stay as seeded", file=sys.stderr)
    return None
