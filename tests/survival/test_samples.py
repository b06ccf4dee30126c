"""From 2 nodes to 1 and back to 2: every sample is applied once an epoch, in the order of (seed, consumed samples)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from everstep.runtime.data import Sampler, sample_count
from tests.harness import ROOT, ROUNDS, TrainStep, wait_until

ITERATIONS, BATCH, LENGTH, SEED = 300 + 400 * ROUNDS, 7, 64, 3
HELD = ITERATIONS - 100
"""The script does this iteration only when there is a file `go`: it does not end before all was asked for."""

SCRIPT = """
import json, os, sys, threading
import torch
import everstep

dataset, folder, iterations, held = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
job = everstep.init()
model = torch.nn.Linear(1, 1)
batches = everstep.batches(dataset, sequence_length=64, global_batch=7, seed=3, iterations=iterations)
state = {"model": model, "batches": batches}
checkpointer = everstep.Checkpointer(state)
checkpointer.load(state)
told = open(f"{folder}/{job.round}-{job.rank}-{os.getpid()}.jsonl", "a", buffering=1)
for batch in batches:
    while batch.iteration == held and not os.path.exists(f"{folder}/../go"):
        threading.Event().wait(0.03)
    line = {"round": job.round, "iteration": batch.iteration, "world": job.world_size, "rank": job.rank}
    told.write(json.dumps({**line, "samples": batch.samples.tolist()}) + "\\n")
    threading.Event().wait(0.03)
    loss = torch.zeros(())
    if job.world_size > 1:
        torch.distributed.all_reduce(loss)
    checkpointer.save(batch.iteration, state)
    everstep.report(loss=0.0)
checkpointer.finish(state)
"""


@pytest.fixture
def scaled(training: TrainStep, dataset: Path) -> TrainStep:
    """A training whose workers write down the samples that they apply."""
    script = training.folder.parent / "script.py"
    script.write_text(SCRIPT)
    (training.folder.parent / "samples").mkdir()
    training.flags = {
        **{name: training.flags[name] for name in ("dataset", "nodes", "min-nodes", "persist-interval")},
        "script": str(script),
        "script-args": f"{{dataset}} {training.folder.parent / 'samples'} {{iterations}} {HELD}",
        "iterations": str(ITERATIONS),
    }
    return training


def scale(training: TrainStep, nodes: int) -> None:
    """`everstep scale`, as a user calls it."""
    command = [sys.executable, "-m", "everstep", "scale", training.folder.name, "--nodes", str(nodes)]
    subprocess.run([*command, "--runs", str(training.folder.parent)], cwd=ROOT, check=True, capture_output=True)


def go_on(training: TrainStep, iterations: int) -> None:
    """Wait for so many more; for fewer where the script is about to be held."""
    training.wait_iteration(min(training.iteration() + iterations, HELD - 10))


def worlds_of(training: TrainStep) -> list[int]:
    """Nodes of each round."""
    formed = [record["round"]["members"] for record in training.records() if record["kind"] == "RoundFormed"]
    return [len(members["worker"]) for members in formed]


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_two_one_two_nodes_apply_every_sample_once(scaled: TrainStep, dataset: Path) -> None:
    scaled.start()
    for _ in range(ROUNDS):
        go_on(scaled, 30)
        scale(scaled, 1)
        wait_until(lambda: worlds_of(scaled)[-1] == 1 or scaled.over(), "a node alone")
        go_on(scaled, 40)
        scale(scaled, 2)
        wait_until(lambda: worlds_of(scaled)[-1] == 2 or scaled.over(), "the second node")
    (scaled.folder.parent / "go").touch()
    assert scaled.finish() == 0, scaled.log.read_text()

    applied: dict[int, dict[int, dict[int, list[int]]]] = {}
    for path in (scaled.folder.parent / "samples").iterdir():
        for text in path.read_text().splitlines():
            line = json.loads(text)
            applied.setdefault(line["iteration"], {}).setdefault(line["round"], {})[line["rank"]] = line["samples"]
    assert worlds_of(scaled) == [2, *[1, 2] * ROUNDS]

    order: list[int] = []
    for iteration in range(1, ITERATIONS + 1):
        ranks = applied[iteration][max(applied[iteration])]
        order += [sample for rank in sorted(ranks) for sample in ranks[rank]]
    tokens = json.loads((dataset / "dataset.json").read_text())["train"]["tokens"]
    samples = sample_count(tokens, LENGTH)
    sampler = Sampler(samples, BATCH, SEED)
    assert order == np.concatenate([sampler.indices(BATCH * i) for i in range(ITERATIONS)]).tolist()
    epochs = len(order) // samples
    assert epochs >= 2
    for epoch in range(epochs):
        assert sorted(order[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
    assert scaled.leftovers() == []
