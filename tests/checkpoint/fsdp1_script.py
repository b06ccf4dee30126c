"""Rounds of an FSDP1 training as its users write it, without an agent: for each world size forked ranks that load,
train two iterations and save. Rank 0 leaves the whole state, as FSDP itself gathers it, in RESULT-<number>.
"""

import os
import socket
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817 (its users' name)

from everstep.flash_checkpoint import FsdpShardCheckpointer, StorageType


def whole(model: Any, optimizer: Any) -> dict[str, Any]:
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=False)):
        # A copy: with one rank FSDP gives the live tensors.
        return deepcopy({"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)["state"]})


def load(checkpointer: FsdpShardCheckpointer, model: Any, optimizer: Any) -> int:
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state_dict: dict[str, Any] = {"model": model.state_dict(), "step": 0}
        storage_reader = checkpointer.get_storage_reader()
        if not storage_reader:
            return 0
        dist_cp.load_state_dict(  # pyright: ignore[reportPrivateImportUsage]
            state_dict=state_dict, storage_reader=storage_reader
        )
        model.load_state_dict(state_dict["model"])
        optim_state = load_sharded_optimizer_state_dict(
            model_state_dict=state_dict["model"], optimizer_key="optim", storage_reader=storage_reader
        )
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim_state["optim"]))
        return int(state_dict["step"])


def work(rank: int, world_size: int, port: int, folder: str, result: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(13, 70), torch.nn.Tanh(), torch.nn.Linear(70, 1)]
    model = FSDP(torch.nn.Sequential(*layers), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpointer = FsdpShardCheckpointer(folder)
    iteration = load(checkpointer, model, optimizer)
    loaded = whole(model, optimizer) if iteration else {}
    for step in (iteration + 1, iteration + 2):
        torch.manual_seed(step)
        model(torch.randn(8, 13)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            model_state, optim_state = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
            state_dict = {"model": model_state, "optim": optim_state, "step": step}
            for storage_type in (StorageType.MEMORY, StorageType.DISK):
                checkpointer.save_checkpoint(step, state_dict, f"{folder}/{step}", storage_type=storage_type)
    checkpointer.wait_latest_checkpoint()
    trained = whole(model, optimizer)
    if rank == 0:
        torch.save({"done": iteration, "loaded": loaded, "trained": trained}, result)
    dist.barrier()
    os._exit(0)


def main(folder: str, result: str, *worlds: str) -> int:
    for number, world_size in enumerate(map(int, worlds)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(world_size):
            if not (pid := os.fork()):
                work(rank, world_size, port, folder, Path(f"{result}-{number}"))
            ranks.append(pid)
        if failed := [pid for pid in ranks if os.waitpid(pid, 0)[1]]:
            return len(failed)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
