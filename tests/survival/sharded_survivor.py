"""FSDP2 in a process that outlives rounds: the model is built and sharded again in each."""

import argparse
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import everstep
from everstep.runtime.data import open_dataset

ITERATION_S = 0.02


def build(vocabulary: int, seed: int) -> torch.nn.Sequential:
    """A small model."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Embedding(vocabulary, 32), torch.nn.Linear(32, vocabulary))


@everstep.main
def main(job: everstep.Context) -> None:
    """Train to the last iteration, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    for name in ("iterations", "sequence-length", "global-batch", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dataset")
    options = parser.parse_known_args()[0]
    print(f"process {os.getpid()} is rank {job.rank} of {job.world_size} in round {job.round}", file=sys.stderr)
    model = job.keep(build, open_dataset(options.dataset).vocab_size, options.seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    batches = everstep.batches(
        options.dataset,
        sequence_length=options.sequence_length,
        global_batch=options.global_batch,
        seed=options.seed,
        iterations=options.iterations,
    )
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        threading.Event().wait(ITERATION_S)
        loss = cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        (loss * batch.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(loss.item(), batch.weight))
    checkpointer.finish(state)


if __name__ == "__main__":
    main()
