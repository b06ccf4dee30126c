"""A spare's rehearsal of a script: `rehearsing_script.py ddp|fsdp|silent OUT` writes how it ended and what it did."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.kept_values import KeptValues
from everstep.rehearsal import rehearse

steps = 0


def build() -> torch.nn.Sequential:
    """A small model."""
    return torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))


def main(job: everstep.Context) -> None:
    """As a user's script; `silent` neither saves nor reports."""
    global steps
    assert job.rehearses
    assert (dist.get_rank(), dist.get_world_size()) == (1, 4)
    model = replica = job.keep(build)
    if sys.argv[1] == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    else:
        replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    state = {"model": model, "optimizer": optimizer}
    checkpointer = None if sys.argv[1] == "silent" else everstep.Checkpointer(state)
    if checkpointer:
        assert checkpointer.load(state) == 0
    for iteration in range(1, 100):
        replica(torch.ones(4, 10)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        dist.barrier()
        job.mean(1.0)
        if checkpointer:
            checkpointer.save(iteration, state)


if __name__ == "__main__":
    os.environ.update(RANK="1", WORLD_SIZE="4", LOCAL_RANK="0", EVERSTEP_STORE=f"{sys.argv[2]}.store")
    rehearsed = rehearse(main, 0, KeptValues())
    has_size = rehearsed.state_bytes > 0
    Path(sys.argv[2]).write_text(repr((rehearsed.problem, steps, Path(f"{sys.argv[2]}.store").exists(), has_size)))
    os._exit(0)
