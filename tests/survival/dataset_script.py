"""Counts how often each sample of a dataset has been applied; the counts are in the checkpoint beside the position."""

import argparse

import torch
from torch.utils.data import Dataset

import everstep

SAMPLES, BATCH = 96, 12


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    """Apply every sample once an epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    job = everstep.init()
    batches = everstep.loader(
        Numbers(), global_batch=BATCH, epochs=parser.parse_args().epochs, num_workers=1, prefetch_factor=4
    )
    counts = torch.zeros(SAMPLES, dtype=torch.int64)
    state = {"counts": counts, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        applied = torch.zeros_like(counts)
        for part in batch.parts:
            applied.index_add_(0, part.data, torch.full_like(part.data, bool(part.weight)))
        torch.distributed.all_reduce(applied)
        counts += applied
        checkpointer.save(batch.iteration, state)
    checkpointer.finish(state)
    print("done on", job.world_size, "ranks")


if __name__ == "__main__":
    main()
