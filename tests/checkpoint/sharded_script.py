"""All ranks of one round of a sharded training: FSDP2 or tensor parallelism on gloo, one process a rank.

Forks the ranks. When one is killed the others are too, as the agents would do it. Rank 0 leaves the
whole state, gathered by torch, in the result file; beside it the ranks find each other, so no two launches share it.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._pytree import tree_map

from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper
from everstep.runtime.protocol.worker_link import Link
from everstep.runtime.store import open_store


def build(world_size: int, mesh: str) -> torch.nn.Module:
    """Sizes that no number of ranks divides; `mesh` is plain, fsdp, tp or both (2 x 2)."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 70), torch.nn.Tanh(), torch.nn.Linear(70, 5, bias=False))
    if mesh == "plain":
        return model
    shape = (2, world_size // 2) if mesh == "both" else (world_size,)
    device = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor")[: len(shape)])
    if mesh in ("tp", "both"):
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, device["tensor"] if mesh == "both" else device, plan)
    if mesh in ("fsdp", "both"):
        along = device["data"] if mesh == "both" else device
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=along)
        fully_shard(model, mesh=along)
    return model


def work(rank: int, world_size: int, mesh: str, iterations: int, result: str) -> None:
    torch.set_num_threads(1)  # Makes torch's threads anew after the fork; backward's threads would race to.
    dist.init_process_group("gloo", init_method=f"file://{result}.store", rank=rank, world_size=world_size)
    model = build(world_size, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer, "iteration": 0}
    link = Link.from_environment()
    alone = StandaloneKeeper(open_store(os.environ["EVERSTEP_STORE"]), "job") if link is None else None
    checkpointer = Checkpointer(state, keeper=link or alone, rank=rank, local_rank=int(os.environ["LOCAL_RANK"]))
    start_iteration = checkpointer.load(state)
    assert state["iteration"] == start_iteration
    for iteration in range(start_iteration + 1, iterations + 1):
        torch.manual_seed(iteration)
        model(torch.randn(8, 13)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state["iteration"] = iteration
        checkpointer.save(iteration, state)
    if start_iteration < iterations:
        checkpointer.finish(state)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"], "done": start_iteration}
    whole = tree_map(lambda t: t.full_tensor() if isinstance(t, DTensor) else t, states)
    if rank == 0:
        torch.save(whole, result)
    dist.barrier()
    os._exit(0)


def main(mesh: str, iterations: int, result: str, agents: list[str]) -> int:
    """One worker an agent; `PATH*2` stands for an agent with two, `*2` for two that keep their checkpoints themselves,
    in EVERSTEP_STORE. Exit code of the first rank that fails."""
    places = [(path, n) for path, _, count in (a.partition("*") for a in agents) for n in range(int(count or 1))]
    ranks = {}
    for rank, (path, local_rank) in enumerate(places):
        if not (pid := os.fork()):
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(len(places)))
            if path:
                os.environ["EVERSTEP_AGENT"] = path
            work(rank, len(places), mesh, iterations, result)
        ranks[pid] = rank
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.pop(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status) & 0xFF
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
