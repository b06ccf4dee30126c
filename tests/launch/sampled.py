"""A script that writes down the samples it applies, and what must be true of them whatever came between."""

import json
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from everstep.runtime.data import Sampler, open_dataset, sample_count
from tests.datasets import write_dataset

LENGTH, BATCH, SEED = 16, 7, 3
BY_GLOO = """
def agree(iteration, stop):
    torch.distributed.all_reduce(stop)
"""
"""How the ranks tell each other in each iteration whether to stop."""


def script(agree: str = BY_GLOO) -> str:
    """Trains until there is a file `stop` beside it; goes on in the samples where another round ended."""
    return f"""
import json, os, sys, threading
import torch
import everstep

folder = os.path.dirname(__file__)
job = everstep.init()
{agree}
model = torch.nn.Linear(1, 1)
batches = everstep.batches(sys.argv[1], sequence_length={LENGTH}, global_batch={BATCH}, seed={SEED})
state = {{"model": model, "batches": batches}}
checkpointer = everstep.Checkpointer(state)
checkpointer.load(state)
told = open(f"{{folder}}/samples/{{job.round}}-{{job.rank}}-{{os.getpid()}}.jsonl", "a", buffering=1)
stop = torch.zeros(1)
for batch in batches:
    line = {{"round": job.round, "iteration": batch.iteration, "world": job.world_size, "rank": job.rank}}
    told.write(json.dumps({{**line, "samples": batch.samples.tolist()}}) + "\\n")
    threading.Event().wait(0.02)
    stop[0] = job.rank == 0 and os.path.exists(f"{{folder}}/stop")
    agree(batch.iteration, stop)
    checkpointer.save(batch.iteration, state)
    everstep.report(loss=0.0)
    if stop:
        break
checkpointer.finish(state)
"""


def make_dataset(folder: Path) -> str:
    """60 samples of 16 tokens; also a folder for what the script writes down."""
    (folder / "samples").mkdir()
    return write_dataset(folder / "dataset")


Applied = dict[int, dict[int, dict[int, list[int]]]]
"""Samples by iteration, round and rank."""


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    """What the workers wrote down so far; a line that is being written is left out."""
    for path in (folder / "samples").iterdir():
        for text in path.read_text().splitlines():
            if text.endswith("}"):
                yield json.loads(text)


def applied_samples(folder: Path) -> Applied:
    """What was applied so far; of the newest iterations perhaps by some ranks only: their files are read in turn."""
    applied_lines: Applied = {}
    for line in _lines(folder):
        applied_lines.setdefault(line["iteration"], {}).setdefault(line["round"], {})[line["rank"]] = line["samples"]
    return applied_lines


def later_round(folder: Path, world: int, after: int) -> int:
    """The newest round, if it is later than `after` and has done 20 iterations with so many workers; else 0."""
    complete_iterations: dict[int, int] = {}
    for rounds in applied_samples(folder).values():
        for number, ranks in rounds.items():
            complete_iterations[number] = complete_iterations.get(number, 0) + (len(ranks) == world)
    newest = max(complete_iterations, default=0)
    return newest if newest > after and complete_iterations[newest] >= 20 else 0


def worlds(folder: Path) -> list[int]:
    """With how many workers it trained so far, one after the other, as the workers say."""
    newest: dict[int, tuple[int, int]] = {}
    for line in _lines(folder):
        newest[line["iteration"]] = max((line["round"], line["world"]), newest.get(line["iteration"], (0, 0)))
    return [world for world, _ in groupby(newest[iteration][1] for iteration in sorted(newest))]


def assert_applied_once(folder: Path, dataset: str, expected_worlds: list[int]) -> None:
    """With so many workers one after the other every sample was applied once an epoch, in the order of its seed.

    Each change cost at most the last iteration and the one that was begun.
    """
    applied_lines = applied_samples(folder)
    rounds = {
        number: [at for at in sorted(applied_lines) if number in applied_lines[at]]
        for number in sorted(set().union(*applied_lines.values()))
    }
    for before, after in pairwise(rounds.values()):
        assert before[-1] - 1 <= after[0] <= before[-1] + 1, f"it was at {before[-1]} and went on at {after[0]}"
    assert worlds(folder) == expected_worlds, f"it trained with {worlds(folder)} workers, not with {expected_worlds}"
    assert sorted(applied_lines) == list(range(1, len(applied_lines) + 1)), "no iteration is missing"
    assert sum(len(rounds) - 1 for rounds in applied_lines.values()) <= 2 * (len(expected_worlds) - 1), (
        "iterations done again"
    )
    order: list[int] = []
    for iteration in sorted(applied_lines):
        ranks = applied_lines[iteration][max(applied_lines[iteration])]
        order += [sample for rank in sorted(ranks) for sample in ranks[rank]]
    samples = sample_count(len(open_dataset(dataset).tokens), LENGTH)
    sampler = Sampler(samples, BATCH, SEED)
    assert order == np.concatenate([sampler.indices(BATCH * number) for number in range(len(applied_lines))]).tolist()
    for epoch in range(len(order) // samples):
        assert sorted(order[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
