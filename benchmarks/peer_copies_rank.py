"""A rank of `peer_copies`: it stages a part of its own and does nothing else."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import everstep
from everstep.runtime.checkpoint.worker.checkpointer import RankState

WARM_UP = 4
"""Saves before the first that counts: their slots get their memory."""


def main(folder: str, mib: str, saves: str, pause_s: str) -> None:
    """Save, and leave the seconds that each save took in a file of its own."""
    context = everstep.init()
    state = RankState(part=torch.full((int(mib) << 18,), float(context.rank)))
    checkpointer, seconds, iteration = everstep.Checkpointer(state), list[list[float]](), 0
    for count, wait_s in ((WARM_UP, float(pause_s)), (int(saves), float(pause_s)), (int(saves), 0.0)):
        seconds.append([])
        for _ in range(count):
            time.sleep(wait_s)
            dist.barrier()
            iteration, began = iteration + 1, time.perf_counter()
            checkpointer.save(iteration, state)
            seconds[-1].append(time.perf_counter() - began)
    Path(folder, f"{context.rank}.json").write_text(json.dumps(seconds[1:]))
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
