"""A training that costs next to nothing, at a steady pace, until an object `stop` lies in its store.

What it trains is one number that tells which samples were applied, and when: each sample's index times its iteration.
With `--sharded` each rank also has a part of a vector that no other rank has, whose entries count the iterations.
`--fails-on` names machines on which a rank fails in iteration `FAILS_AT`.
"""

import argparse
import os
import threading
import time

import torch

import everstep
from everstep.runtime.store import NoSuchKey, StoreError, open_store

WRONG = "this machine computes wrongly"
LOOK_EVERY_S = 0.5
FAILS_AT = 12
ENTRIES = 24
"""Of the vector, for any number of ranks that is likely here."""


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
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--fails-on", default="")
    options = parser.parse_args()
    job = everstep.init()
    total = torch.zeros((), dtype=torch.float64)
    batches = everstep.batches(
        options.dataset, sequence_length=options.length, global_batch=options.batch, seed=options.seed
    )
    state = {"total": total, "batches": batches}
    counts = torch.zeros(ENTRIES)
    if options.sharded:
        from torch.distributed.device_mesh import (
            init_device_mesh,
        )  # A second and more, which other trainings do not need.
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (job.world_size,))
        state["counts"] = shard = distribute_tensor(counts, mesh, [Shard(0)])
        counts = shard.to_local()
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    stopped = threading.Event()
    if job.rank == 0:
        threading.Thread(target=look, args=(options.store, stopped), daemon=True).start()
    for batch in batches:
        time.sleep(float(options.pause))
        if batch.iteration == FAILS_AT and os.environ["EVERSTEP_HOST"] in options.fails_on.split(","):
            raise ArithmeticError(WRONG)
        counts += 1
        if options.sharded and bool((counts != batch.iteration).any()):
            raise AssertionError(f"iteration {batch.iteration}: a shard of another one was restored: {counts}")
        total += job.world_size * job.mean(float(batch.samples.sum()) * batch.iteration)
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=1 / batch.iteration, total=total.item())
        if job.mean(float(stopped.is_set())) > 0:
            break
    checkpointer.finish(state)


if __name__ == "__main__":
    main()
