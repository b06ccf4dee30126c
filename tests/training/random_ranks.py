"""Two forked ranks whose random states differ: `random_ranks.py RESULTS`. Each leaves what it drew."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch

from everstep.random_state import gather_random_states, set_random_state
from everstep.seeding import seed_cpu_generators
from tests.training.forked_ranks import failed_ranks

WORLD_SIZE = 2


def draw() -> list[float]:
    """A number of each generator, and a normal one of those that keep the second of each pair."""
    return [random.random(), random.gauss(), np.random.rand(), np.random.randn(), float(torch.randn(()))]


def be_rank(rank: int) -> None:
    """Leave what it drew before and after its state was set."""
    seed_cpu_generators(rank)
    draw()
    states = gather_random_states()
    drawn = [draw()]
    for restored in states, states[:1], states * 2:
        set_random_state(restored)
        drawn.append(draw())
    Path(f"{sys.argv[1]}-{rank}").write_text(json.dumps(drawn))


if __name__ == "__main__":
    sys.exit(failed_ranks(WORLD_SIZE, sys.argv[1], be_rank))
