"""From 3 nodes to 4 and back to 3, each one `everstep launch`: every sample is applied once an epoch, in the order of
(seed, consumed samples), whatever the world size, and the weights never go back behind the last iteration but one.
"""

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from runtime.agent.ports import free_port
from runtime.data import IndexedWriter, Sampler, open_dataset, sample_count
from tests.launch.launchers import EVERSTEP, Launcher, until

pytest.importorskip("torch")

SCRIPT = """
import json, os, sys, threading
import torch
import everstep

folder = os.path.dirname(__file__)
job = everstep.init()
model = torch.nn.Linear(1, 1)
batches = everstep.batches(sys.argv[1], sequence_length=16, global_batch=7, seed=3)
state = {"model": model, "batches": batches}
checkpointer = everstep.Checkpointer(state)
checkpointer.load(state)
told = open(f"{folder}/samples/{job.round}-{job.rank}-{os.getpid()}.jsonl", "a", buffering=1)
stop = torch.zeros(1)
for batch in batches:
    line = {"round": job.round, "iteration": batch.iteration, "world": job.world_size, "rank": job.rank}
    told.write(json.dumps({**line, "samples": batch.samples.tolist()}) + "\\n")
    threading.Event().wait(0.02)
    stop[0] = job.rank == 0 and os.path.exists(f"{folder}/stop")
    torch.distributed.all_reduce(stop)
    checkpointer.save(batch.iteration, state)
    everstep.report(loss=0.0)
    if stop:
        break
checkpointer.finish(state)
"""


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """60 samples of 16 tokens."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    order = np.random.default_rng(0)
    meta: dict[str, object] = {"version": 1, "tokenizer": "tokenizer.json", "vocab_size": 50, "dtype": "uint16"}
    for split, documents in (("train", 10), ("validation", 2)):
        with IndexedWriter(folder / split, np.uint16) as writer:
            for _ in range(documents):
                writer.add(order.integers(0, 50, 97))
        meta[split] = {"prefix": split, "documents": documents, "tokens": documents * 97}
    (folder / "dataset.json").write_text(json.dumps(meta))
    return str(folder)


Applied = dict[int, dict[int, dict[int, list[int]]]]
"""Samples by iteration, round and rank."""


def applied(folder: Path) -> Applied:
    """What the workers wrote down so far; a line that is being written is left out."""
    found: Applied = {}
    for path in (folder / "samples").iterdir():
        for text in path.read_text().splitlines():
            if text.endswith("}"):
                line = json.loads(text)
                found.setdefault(line["iteration"], {}).setdefault(line["round"], {})[line["rank"]] = line["samples"]
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told to leave", "killed"])
def test_three_four_three_nodes_apply_every_sample_once(launcher: Launcher, dataset: str, how: signal.Signals) -> None:
    folder = launcher.folder
    (folder / "samples").mkdir()
    (folder / "train.py").write_text(SCRIPT)
    patience = "--rdzv-conf=last_call_timeout=2,keep_alive_interval=5,keep_alive_max_attempt=2"
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port(random.Random())}"
    flags = ("--nnodes=3:4", "--rdzv-backend=c10d", endpoint, patience, "--cooldown=0", "train.py", dataset)

    def start(name: str) -> int:
        return launcher.start(EVERSTEP, *flags, name=name, OMP_NUM_THREADS="1").pid

    def told() -> str:
        return "".join(f"\n[{path.stem}] {path.read_text()}" for path in sorted(folder.glob("*.err")))

    def trains(world: int, after: int) -> int:
        """Until a round later than `after` has done 20 iterations with so many workers; its number."""
        newest = after

        def going() -> bool:
            nonlocal newest
            by_round: dict[int, int] = {}
            for rounds in applied(folder).values():
                for number, ranks in rounds.items():
                    by_round[number] = by_round.get(number, 0) + (len(ranks) == world)
            newest = max(by_round, default=0)
            return newest > after and by_round[newest] >= 20

        until(going, told)
        return newest

    for name in ("a", "b", "c"):
        start(name)
    first = trains(3, 0)
    fourth = start("d")
    second = trains(4, first)
    os.kill(fourth, how)
    assert launcher.named["d"].wait(180) == (143 if how is signal.SIGTERM else -signal.SIGKILL)
    trains(3, second)
    (folder / "stop").touch()
    assert [launcher.ended(launcher.named[name], name).code for name in ("a", "b", "c")] == [0, 0, 0], told()

    found = applied(folder)
    worlds = [len(found[iteration][max(found[iteration])]) for iteration in sorted(found)]
    assert [world for at, world in enumerate(worlds) if at == 0 or world != worlds[at - 1]] == [3, 4, 3]
    assert sorted(found) == list(range(1, len(found) + 1)), "no iteration is missing"
    lost = sum(len(rounds) - 1 for rounds in found.values())
    assert lost <= 2 * 2, "at most one iteration and the one begun, for each of two changes"
    order: list[int] = []
    for iteration in sorted(found):
        ranks = found[iteration][max(found[iteration])]
        order += [sample for rank in sorted(ranks) for sample in ranks[rank]]
    samples = sample_count(len(open_dataset(dataset).tokens), 16)
    sampler = Sampler(samples, 7, 3)
    assert order == np.concatenate([sampler.indices(7 * number) for number in range(len(found))]).tolist()
    for epoch in range(len(order) // samples):
        assert sorted(order[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
    until(lambda: not launcher.processes(), told)
    if how is signal.SIGTERM:
        assert launcher.left() == []
