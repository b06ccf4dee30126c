"""A training that costs next to nothing, at a steady pace, until an object `stop` lies in its store.

What it trains is one number that tells which samples were applied, and when: each sample's index times its iteration.
"""

import argparse
import threading
import time

import torch

import everstep
from everstep.runtime.store import NoSuchKey, StoreError, open_store

LOOK_EVERY_S = 0.5


def look(store: str, stopped: threading.Event) -> None:
    """Until somebody has said so; a store that is away says nothing."""
    while not stopped.wait(LOOK_EVERY_S):
        try:
            open_store(store, read_only=True).get("stop")
        except (NoSuchKey, StoreError):
            continue
        stopped.set()


def main() -> None:
    """Train until it is stopped."""
    parser = argparse.ArgumentParser()
    for name in ("--dataset", "--store", "--pause"):
        parser.add_argument(name, required=True)
    for name in ("--length", "--batch", "--seed"):
        parser.add_argument(name, required=True, type=int)
    options = parser.parse_args()
    job = everstep.init()
    total = torch.zeros((), dtype=torch.float64)
    batches = everstep.batches(
        options.dataset, sequence_length=options.length, global_batch=options.batch, seed=options.seed
    )
    state = {"total": total, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    stopped = threading.Event()
    if job.rank == 0:
        threading.Thread(target=look, args=(options.store, stopped), daemon=True).start()
    for batch in batches:
        time.sleep(float(options.pause))
        total += job.world_size * job.mean(float(batch.samples.sum()) * batch.iteration)
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=1 / batch.iteration, total=total.item())
        if job.mean(float(stopped.is_set())) > 0:
            break
    checkpointer.finish(state)


if __name__ == "__main__":
    main()
