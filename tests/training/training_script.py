"""The loop that users write, and a record of what it saw."""

import hashlib
import json
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import everstep


def main(dataset: str, iterations: int, global_batch: int, out: str) -> None:
    job = everstep.init(seed=3)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Embedding(50, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 50)
    )
    if job.world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = everstep.batches(dataset, sequence_length=16, global_batch=global_batch, seed=5, iterations=iterations)
    state = {"model": model, "optimizer": optimizer, "batches": batches, "config": {"made": "for a test"}}
    checkpointer = everstep.Checkpointer(state)
    started = checkpointer.load(state)
    batches_seen, losses = [], []
    for batch in batches:
        everstep.phase("forward")
        loss = torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        (loss * batch.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(batch.iteration, state)
        mean = job.mean(loss.item(), batch.weight)
        everstep.report(loss=mean)
        losses.append(mean)
        batches_seen.append(
            [batch.iteration, batch.consumed, batch.weight, batch.inputs.tolist(), batch.targets.tolist()]
        )
    checkpointer.finish(state)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    facts = {"started": started, "seen": batches_seen, "losses": losses, "weights": hashlib.sha256(weights).hexdigest()}
    with open(out, "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
