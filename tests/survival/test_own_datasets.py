"""A user's own dataset under real kills: `everstep.loader` with workers that read ahead, ranks that come and go."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.harness import ROUNDS, tensors
from tests.survival.dataset_script import BATCH, SAMPLES
from tests.trained import Start, own_script, reasons

SCRIPT = str(Path(__file__).with_name("dataset_script.py"))
KILLS = 20 * ROUNDS
APART = 3
"""Iterations between two kills."""
POINTS = ("train.iteration", "checkpoint.mid_copy", "checkpoint.after_copy", "checkpoint.after_commit")
LOSES_ITS_NODE = 10
"""Every so many-th kill is one of a node, which another one replaces while three go on."""


@pytest.mark.long
@pytest.mark.parametrize("streams", [0, 7])
def test_each_sample_counts_once_an_epoch_through_real_kills_between_3_and_4_ranks(
    trained: Start, streams: int
) -> None:
    chance = random.Random(3)
    faults = []
    for number in range(1, KILLS + 1):
        at, rank = APART * number, chance.randrange(3)
        if number % LOSES_ITS_NODE == 0:
            faults.append(f"train.iteration,iteration={at},rank={rank}=exit:201")
        else:
            faults.append(f"{chance.choice(POINTS)},iteration={at},rank={rank}=kill")
    epochs = -(-APART * (KILLS + 2) * BATCH // SAMPLES)
    arguments = f"--epochs {epochs}" + f" --streams {streams}" * bool(streams)
    flags = own_script(SCRIPT, nodes="4", **{"min-nodes": "3", "script-args": arguments, "replacement-wait-s": "0"})
    flags |= {"max-restarts": "1000", "max-relaunches": "1000"}
    step = trained(flags=flags, faults=";".join(faults))
    assert step.finish() == 0, step.last_words()
    assert len(step.fired_points()) == KILLS
    assert len(reasons(step)) >= KILLS
    formed = [record["round"]["members"]["worker"] for record in step.records() if record["kind"] == "RoundFormed"]
    assert {len(members) for members in formed} == {3, 4}
    counts = np.frombuffer(tensors(step.checkpoint())["counts"], np.int64)
    assert counts.tolist() == [epochs] * SAMPLES
