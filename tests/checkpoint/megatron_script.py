"""Rounds of a Megatron-core training, without an agent: `megatron_script.py STORE RESULT TENSORxPIPELINE...`.

For each pair of parallel sizes forked ranks load, train two iterations and save. Rank 0 of each round leaves the losses
on a fixed batch before and after training.
"""

import os
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from everstep.megatron import StorageType, load_checkpoint, save_checkpoint
from examples.with_megatron import BATCH, LENGTH, build_model, tokens_of

STEPS = 2


def loss_of(model: Any, tokens: torch.Tensor, train: bool) -> float:
    """One pass through the pipeline; with `train` also backwards. Every rank gets the loss."""
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    sizes = parallel_state.get_tensor_model_parallel_world_size()
    rank = dist.get_rank()
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
    hidden = torch.zeros(LENGTH, BATCH, 32)
    if not first:
        dist.recv(hidden, rank - sizes)
        hidden.requires_grad_()
        model.set_input_tensor(hidden)
    out = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:] if last else None)
    loss = out.mean() if last else torch.zeros(())
    if not last:
        dist.send(out.detach().contiguous(), rank + sizes)
    if train and last:
        loss.backward()
    if train and not last:
        gradient = torch.empty_like(out)
        dist.recv(gradient, rank + sizes)
        out.backward(gradient)
    if train and hidden.grad is not None:
        dist.send(hidden.grad, rank - sizes)
    loss_sum = loss.detach().clone()
    dist.broadcast(loss_sum, dist.get_world_size() - 1)
    return float(loss_sum)


class Scheduler:
    """Has the state of Megatron's OptimizerParamScheduler that matters here."""

    def __init__(self) -> None:
        self.num_steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.num_steps = state_dict["num_steps"]


def work(rank: int, sizes: tuple[int, int], port: int, number: int, result: str) -> None:
    """One rank of a round."""
    world_size = sizes[0] * sizes[1]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    parallel_state.initialize_model_parallel(*sizes)
    torch.manual_seed(number and 10 * number + rank)  # Later what ranks have in common came from a checkpoint.
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = Scheduler()
    start, operations = load_checkpoint([model], optimizer, scheduler)
    drawn = torch.rand(1).item()
    losses = [loss_of(model, tokens_of(0, 0), train=False)]
    for iteration in range(start + 1, start + STEPS + 1):
        loss_of(model, tokens_of(iteration, 0), train=True)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.num_steps += 1
        for storage in (StorageType.MEMORY, StorageType.DISK):
            save_checkpoint(
                iteration, [model], optimizer, num_floating_point_operations_so_far=operations + iteration,
                opt_param_scheduler=scheduler, storage_type=storage, replica_count=2,
            )  # fmt: skip
        operations += iteration
    losses.append(loss_of(model, tokens_of(0, 0), train=False))
    torch.manual_seed(iteration)
    flush()
    if rank == 0:
        facts = {"start": start, "operations": operations, "losses": losses, "steps": scheduler.num_steps}
        torch.save({**facts, "drawn": drawn, "step": next(iter(optimizer.state.values()))["step"]}, result)
    dist.barrier()
    os._exit(0)


def flush() -> None:
    """Wait until the last save is committed."""
    from everstep import megatron

    megatron._checkpointer("", "").wait_latest_checkpoint()


def main(store: str, result: str, *rounds: str) -> int:
    os.environ["EVERSTEP_STORE"] = store
    for number, sizes in enumerate(rounds):
        tensor, pipeline = map(int, sizes.split("x"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(tensor * pipeline):
            if not (pid := os.fork()):
                try:
                    work(rank, (tensor, pipeline), port, number, f"{result}-{number}")
                finally:
                    os._exit(1)
            ranks.append(pid)
        if failed := [pid for pid in ranks if os.waitpid(pid, 0)[1]]:
            return len(failed)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
