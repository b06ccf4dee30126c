"""What ranks of a script agree on although no agent tells them: numbers, by torch.distributed where it is initialised.

Each function is a collective then: every rank calls it, or all wait. A process by itself agrees with itself.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from everstep.runtime.checkpoint.errors import UnreachableError

_FAILED = -1


def broadcast_from_rank_0(look: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """The two numbers from 0 on that `look` gives on rank 0, on every rank; only there it is called. Raises there what
    OSError it raises, and on the others UnreachableError: nobody waits for a rank that has failed."""
    if not _is_distributed():
        return look()
    numbers, failure = (_FAILED, _FAILED), None
    if dist.get_rank() == 0:
        try:
            numbers = look()
        except OSError as error:  # Raised below, when the others know.
            failure = error
    both = torch.tensor(numbers, device=_device())
    dist.broadcast(both, 0)
    if failure is not None:
        raise failure
    one, other = both.tolist()
    if one == _FAILED:
        raise UnreachableError("rank 0 could not look which checkpoints there are; it says why")
    return one, other


def max_over_ranks(mine: float) -> float:
    """Of all ranks' numbers."""
    if not _is_distributed():
        return mine
    both = torch.tensor([mine], dtype=torch.float64, device=_device())
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return float(both[0])


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
