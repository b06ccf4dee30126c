"""Two forked ranks whose random states differ: `random_ranks.py RESULTS`. Each leaves what it drew."""

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from everstep.random_state import gather_random_states, set_random_state
from everstep.seeding import seed_cpu_generators

WORLD_SIZE = 2


def draw() -> list[float]:
    """A number of each generator, and a normal one of those that keep the second of each pair."""
    return [random.random(), random.gauss(), np.random.rand(), np.random.randn(), float(torch.randn(()))]


def become(rank: int, results: str) -> None:
    """Be that rank."""
    dist.init_process_group("gloo", init_method=f"file://{results}.group", rank=rank, world_size=WORLD_SIZE)
    seed_cpu_generators(rank)
    draw()
    states = gather_random_states()
    drawn = [draw()]
    for restored in states, states[:1], states * 2:
        set_random_state(restored)
        drawn.append(draw())
    Path(f"{results}-{rank}").write_text(json.dumps(drawn))
    dist.barrier()
    os._exit(0)


def main() -> int:
    """How many ranks failed."""
    children = []
    for rank in range(WORLD_SIZE):
        if not (pid := os.fork()):
            become(rank, sys.argv[1])
        children.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


if __name__ == "__main__":
    sys.exit(main())
