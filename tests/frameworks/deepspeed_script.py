"""Rounds of a DeepSpeed training, without an agent: `deepspeed_script.py STORE RESULT STAGE WORLD_SIZE...`.

For each world size forked ranks load, train two iterations and save. Rank 0 leaves the losses on a fixed batch before
and after training.
"""

import os
import socket
import sys

import deepspeed  # pyright: ignore[reportMissingImports]
import torch
import torch.distributed as dist

from everstep.deepspeed import DeepSpeedCheckpointer, StorageType


def work(rank: int, world_size: int, port: int, stage: int, store: str, result: str) -> None:
    """One rank of a round."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # It would be compiled first.
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(13, 70), torch.nn.Tanh(), torch.nn.Linear(70, 1))
    settings = {
        "train_batch_size": 12,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=settings, dist_init_required=False)
    checkpointer = DeepSpeedCheckpointer(engine, store)
    _, client_state = checkpointer.load_checkpoint()
    start = client_state.get("iteration", 0)
    fixed = torch.randn(12, 13, generator=torch.Generator().manual_seed(5))
    losses = []

    def measure() -> None:
        with torch.no_grad():
            losses.append(engine(fixed).square().mean().item())

    measure()
    for iteration in range(start + 1, start + 3):
        inputs = torch.randn(12, 13, generator=torch.Generator().manual_seed(iteration)).chunk(world_size)[rank]
        engine.backward((engine(inputs) - inputs.sum(1, keepdim=True)).square().mean())
        engine.step()
        checkpointer.save_checkpoint(client_state={"iteration": iteration}, storage_type=StorageType.DISK)
    measure()
    checkpointer.wait_latest_checkpoint()
    if rank == 0:
        torch.save({"start": start, "losses": losses}, result)
    dist.barrier()
    os._exit(0)


def main(store: str, result: str, stage: str, *worlds: str) -> int:
    for number, world_size in enumerate(map(int, worlds)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(world_size):
            if not (pid := os.fork()):
                try:
                    work(rank, world_size, port, int(stage), store, f"{result}-{number}")
                finally:
                    os._exit(1)
            ranks.append(pid)
        if failed := [pid for pid in ranks if os.waitpid(pid, 0)[1]]:
            return len(failed)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
