"""Counts how often each sample of a dataset has been applied; the counts are in the checkpoint beside the position."""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import everstep

SAMPLES, BATCH = 96, 12
FILES = 7


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Files(IterableDataset[int]):
    """The same samples in files of several sizes, divided among workers as torch's documentation has it."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for file in range(first, FILES, step):
            yield from range(SAMPLES * file * file // FILES**2, SAMPLES * (file + 1) ** 2 // FILES**2)


def main() -> None:
    """Apply every sample once an epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--streams", type=int)
    options = parser.parse_args()
    job = everstep.init()
    dataset: Any = Files() if options.streams else Numbers()
    batches = everstep.loader(
        dataset, global_batch=BATCH, epochs=options.epochs, num_workers=1, prefetch_factor=4, streams=options.streams
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
