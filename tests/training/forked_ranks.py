"""Ranks that are forks of this process, in a group over gloo."""

import os
from collections.abc import Callable

import torch.distributed as dist


def failed_ranks(world_size: int, result: str, be: Callable[[int], None]) -> int:
    """Call `be` with its rank in each of so many forks, meeting at a file beside `result`. Returns how many failed."""
    children = []
    for rank in range(world_size):
        if not (pid := os.fork()):
            dist.init_process_group("gloo", init_method=f"file://{result}.group", rank=rank, world_size=world_size)
            be(rank)
            dist.barrier()
            os._exit(0)
        children.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
