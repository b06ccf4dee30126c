"""Agreement between the ranks of a script that no agent started: numbers, through torch.distributed if it is
initialised.

Each function is then a collective: every rank must call it, or all wait. Without torch.distributed a process agrees
with itself. `own` is the device with the state; a script need not have selected it as the current one.
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from everstep.runtime.checkpoint.errors import UnreachableError

GROUP_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "npu": "hccl"}
"""The process group's backend for each kind of device, by its name in torch.accelerator. Only the CPU's ever ran."""
_FAILED = -1


def broadcast_from_rank_0(look: Callable[[], tuple[int, int]], own: torch.device) -> tuple[int, int]:
    """Call `look` on rank 0 and return its two numbers, which are not negative, on every rank. An OSError from `look`
    is raised on rank 0; the other ranks raise UnreachableError, so none waits for a failed rank."""
    if not _is_distributed():
        return look()
    numbers, failure = (_FAILED, _FAILED), None
    if dist.get_rank() == 0:
        try:
            numbers = look()
        except OSError as error:  # Raised below, after the others have been told.
            failure = error
    both = torch.tensor(numbers, device=_group_device(own))
    dist.broadcast(both, 0)
    if failure is not None:
        raise failure
    first, second = both.tolist()
    if first == _FAILED:
        raise UnreachableError("rank 0 could not list the checkpoints; see its error")
    return first, second


def max_over_ranks(mine: float, own: torch.device) -> float:
    """The largest number of all ranks."""
    if not _is_distributed():
        return mine
    both = torch.tensor([mine], dtype=torch.float64, device=_group_device(own))
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return float(both[0])


def world_size() -> int:
    """The number of ranks that agree."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _is_distributed() -> bool:
    return world_size() > 1


def _group_device(own: torch.device) -> torch.device:
    """A device whose tensors the default group exchanges: the CPU if it can be, else one that no other rank has (NCCL
    refuses the others: "Duplicate GPU detected")."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config().split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    if own.type in kinds:
        return own
    assert dist.group.WORLD is not None
    local_rank = int(os.environ.get("LOCAL_RANK", 0))  # Each rank may see one device, its own.
    return dist.group.WORLD.bound_device_id or torch.device(kinds[0], local_rank % torch.accelerator.device_count())
