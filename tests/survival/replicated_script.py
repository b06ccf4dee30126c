"""A model in torch's DistributedDataParallel, with dropout, whose gradients are computed again."""

import argparse
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.runtime.data import open_dataset


def arguments() -> argparse.Namespace:
    """The flags that the step passes, and the fault."""
    parser = argparse.ArgumentParser()
    for name in ("iterations", "sequence-length", "global-batch", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dataset")
    parser.add_argument("--flip", default="0,0", help="ITERATION,RANK: of its own gradient, in the first round")
    return parser.parse_known_args()[0]


def build(vocabulary: int) -> torch.nn.Module:
    """Dropout draws random numbers. Running means would differ between replicas: such a state cannot be certified."""
    layers: list[torch.nn.Module] = [torch.nn.Embedding(vocabulary, 16), torch.nn.Dropout(0.1), torch.nn.Flatten(0, 1)]
    layers += [torch.nn.LayerNorm(16), torch.nn.Linear(16, vocabulary)]
    return torch.nn.Sequential(*layers)


def add_gradients(module: Any, batch: everstep.Batch) -> torch.Tensor:
    """In two parts, of which the replica reduces the second one's sum. Returns the mean loss of that part."""
    loss, parts = torch.zeros(()), list(zip(batch.inputs.chunk(2), batch.targets.chunk(2), strict=True))
    for number, (inputs, targets) in enumerate(parts, start=1):
        waits = number < len(parts) and isinstance(module, DistributedDataParallel)
        with module.no_sync() if waits else nullcontext():
            loss = cross_entropy(module(inputs), targets.flatten())
            (loss * batch.weight * len(inputs) / len(batch.inputs)).backward()
    return loss


@everstep.main
def main(job: everstep.Context) -> None:
    """Train to the last iteration."""
    options = arguments()
    model = build(open_dataset(options.dataset).vocab_size)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
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
    at, whose = map(int, options.flip.split(","))
    flips = [(1, at)] if job.rank == whose else []

    def damage(gradient: torch.Tensor) -> torch.Tensor:
        if (job.round, batches.iteration) in flips:
            flips.clear()
            gradient = gradient.clone()
            numbers = gradient.view(-1).view(torch.int32)
            numbers[numbers.nonzero()[0]] ^= 1 << 20
        return gradient

    list(model.parameters())[-1].register_hook(damage)
    replay = everstep.Replay(replica, batches, add_gradients)
    for batch in batches:
        loss = add_gradients(replica, batch)
        replay.check(batch)
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=job.mean(loss.item(), batch.weight))
    checkpointer.finish(state)


if __name__ == "__main__":
    main()
