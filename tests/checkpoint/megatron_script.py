"""Rounds of a Megatron-core training, without an agent: `megatron_script.py STORE RESULT TENSORxPIPELINE[xDATA]...`.

For each set of parallel sizes forked ranks load, train two iterations and save. Rank 0 of each round leaves the losses
on a fixed batch before and after training. With DATA the optimizer is Megatron's DistributedOptimizer, and rank 0 also
leaves its state. All data-parallel ranks have the same batches, so nothing reduces gradients.
"""

import math
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


def make_distributed(model: Any) -> tuple[Any, Any]:
    """The model in Megatron's DDP, and a DistributedOptimizer. They want a GPU only where they make tensors, and in the
    names of the types of parameters."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    for parameter in model.decoder.layers[-1].mlp.parameters():
        parameter.allreduce = False  # As those of experts: the optimizer is a chain of two.
    make_tensor: Any = torch.tensor
    changed: Any = torch
    changed.tensor = lambda *data, device=None, **more: make_tensor(*data, **more)
    changed.cuda.current_device = lambda: "cpu"
    changed.nn.Parameter.type = lambda _: "torch.cuda.FloatTensor"
    wrapped = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(use_distributed_optimizer=True), model
    )
    config = OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=0.01, use_distributed_optimizer=True)
    return wrapped, get_megatron_optimizer(config, [wrapped])


def whole_state(optimizer: Any) -> dict[str, torch.Tensor]:
    """What all ranks have of the parameters and their moments; {} on other ranks than the first."""
    whole: dict[str, torch.Tensor] = {}
    for number, part in enumerate(optimizer.chained_optimizers):
        state = part.get_parameter_state_dp_zero()
        (tensors,) = state[0].values() if state else [{}]
        whole |= {f"{name} {number}": value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    return whole


def work(rank: int, sizes: tuple[int, ...], port: int, number: int, result: str) -> None:
    """One rank of a round."""
    world_size = math.prod(sizes)
    is_distributed = len(sizes) > 2
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    parallel_state.initialize_model_parallel(sizes[0], sizes[1])
    torch.manual_seed(number and 10 * number + rank)  # Later what ranks have in common came from a checkpoint.
    model: Any = build_model()
    optimizer: Any = None if is_distributed else torch.optim.AdamW(model.parameters(), lr=1e-2)
    if is_distributed:
        model, optimizer = make_distributed(model)
    scheduler = Scheduler()
    start, operations = load_checkpoint([model], optimizer, scheduler)
    drawn = torch.rand(1).item()
    loaded = whole_state(optimizer) if is_distributed else {}
    losses = [loss_of(model, tokens_of(0, 0), train=False)]
    for iteration in range(start + 1, start + STEPS + 1):
        loss_of(model, tokens_of(iteration, 0), train=True)
        if is_distributed:
            optimizer.prepare_grads()
            optimizer.step_with_ready_grads()  # Its `step` also clips gradients, on a GPU.
            model.zero_grad_buffer()
        else:
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
    saved = whole_state(optimizer) if is_distributed else {}
    inners = [part.optimizer for part in optimizer.chained_optimizers] if is_distributed else [optimizer]
    flush()
    if rank == 0:
        facts = {"start": start, "operations": operations, "losses": losses, "steps": scheduler.num_steps}
        step = max(float(entry["step"]) for inner in inners for entry in inner.state.values())
        torch.save({**facts, "drawn": drawn, "step": step, "loaded": loaded, "saved": saved}, result)
    dist.barrier()
    os._exit(0)


def flush() -> None:
    """Wait until the last save is committed."""
    from everstep import megatron

    megatron._checkpointer("", "").wait_latest_checkpoint()


def main(store: str, result: str, *rounds: str) -> int:
    os.environ["EVERSTEP_STORE"] = store
    for number, sizes in enumerate(rounds):
        parallel_sizes = tuple(map(int, sizes.split("x")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(math.prod(parallel_sizes)):
            if not (pid := os.fork()):
                try:
                    work(rank, parallel_sizes, port, number, f"{result}-{number}")
                finally:
                    os._exit(1)
            ranks.append(pid)
        if failed := [pid for pid in ranks if os.waitpid(pid, 0)[1]]:
            return len(failed)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
