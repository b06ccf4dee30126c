"""Ranks of a DDP script without an agent, each with a store that fails as it is told: what each of them restores.

Forks the ranks; one process group for all cases. `agreeing_ranks.py STORE RESULTS WORLD_SIZE`.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper
from everstep.runtime.store import DirectoryStore, StoreError


@dataclass(frozen=True)
class Case:
    """What fails for one rank, and what then holds for all."""

    wanted: int | str
    """The iteration they restore, or what rank 0 raises."""
    rank: int = -1
    call: str = ""
    """Of the store,"""
    part: str = ""
    """with a key that has this."""
    size: int = 4
    """Of the failing rank's tensor; the checkpoints' is 4."""


CASES = {
    "nothing": Case(3),
    "rank 1 cannot read the newest shard": Case(2, 1, "read_into", "-000000003/"),
    "rank 0 cannot read the newest shard": Case(2, 0, "read_into", "-000000003/"),
    "rank 1 cannot read the newest manifest": Case(2, 1, "get", "-000000003/"),
    "rank 1 cannot list the newest": Case(2, 1, "list", "-000000003"),
    "rank 1 cannot list": Case("UnreachableError", 1, "list"),
    "rank 1 cannot read": Case("UnreachableError", 1, "read_into"),
    "rank 0 cannot list": Case("StoreError", 0, "list"),
    "rank 1 has another model": Case("RestoreError", 1, size=5),
}


class Failing(DirectoryStore):
    """Fails this rank as the case says."""

    def __init__(self, folder: str, case: Case, rank: int) -> None:
        super().__init__(folder, read_only=True)
        self._case, self._rank = case, rank

    def _meet(self, call: str, key: str) -> None:
        if (self._rank, call) == (self._case.rank, self._case.call) and self._case.part in key:
            raise StoreError(f"{call} {key}: planned")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._meet("get", key)
        return super().get(key, start, length)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        self._meet("read_into", key)
        super().read_into(key, start, buffer)

    def list(self, prefix: str):
        self._meet("list", prefix)
        return super().list(prefix)


def restore_case(folder: str, case: Case, rank: int) -> int | str:
    """The iteration, or the name of what is raised."""
    state = {"weights": torch.zeros(case.size if rank == case.rank else 4)}
    checkpointer = Checkpointer(
        state, rank=rank, local_rank=rank, keeper=StandaloneKeeper(Failing(folder, case, rank), "j")
    )
    try:
        iteration = checkpointer.load(state)
    except (OSError, RuntimeError) as error:
        return type(error).__name__
    assert state["weights"].tolist() == [iteration] * 4
    return iteration


def become(rank: int, folder: str, results: str, world_size: int) -> None:
    """Be that rank."""
    dist.init_process_group("gloo", init_method=f"file://{results}.group", rank=rank, world_size=world_size)
    states = {name: restore_case(folder, case, rank) for name, case in CASES.items()}
    Path(f"{results}-{rank}").write_text(json.dumps(states))
    dist.barrier()
    os._exit(0)


def main() -> int:
    """How many ranks failed."""
    folder, results, world_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    children = []
    for rank in range(world_size):
        if not (pid := os.fork()):
            become(rank, folder, results, world_size)
        children.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


if __name__ == "__main__":
    sys.exit(main())
