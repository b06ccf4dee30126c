"""Damaged checkpoints and what killed writers leave: what tests prove, and trainings killed whole and damaged."""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.acceptance import Line
from runtime.checkpoint.keys import MANIFEST
from runtime.data.indexed import IndexedWriter
from tests.harness import ROOT, TrainStep, wait_until

CHECKPOINT, STORE, FACE = "tests/checkpoint/", "tests/store/test_directory_store.py", "tests/face/"
RULES, DAMAGES = "tests/job/test_passed_over.py", f"{CHECKPOINT}test_random_damages.py"
COMMAND = f"{FACE}test_checkpoint_command.py"
PROVEN: dict[str, tuple[str, ...]] = {
    "what a killed put left is swept, what a living process writes is not; folders go with their last object": (
        f"{STORE}::killed_writer_left", f"{STORE}::goes_with_its_last", f"{STORE}::sweepers", f"{STORE}::beside",
    ),
    "everstep checkpoint gc [--dry-run], drop; verify goes on behind a broken manifest; export passes over": (
        f"{COMMAND}::gc_removes", f"{COMMAND}::drop_removes", f"{COMMAND}::verify_goes_on", f"{COMMAND}::passes_over",
    ),
    "100 random damages, one and several at once: 0 blocked jobs, 0 wrong loads, nobody charged": (DAMAGES,),
    "the newest whole one is begun from, in one line, whatever is damaged and whoever tells it (properties)": (RULES,),
    "a source that is wrong is told the master, and the round waited out": (
        f"{CHECKPOINT}test_keeper.py::no_source", f"{CHECKPOINT}test_unusable.py",
        "tests/master/test_unrestored.py",
    ),
    "a script without an agent passes over what is damaged, on all ranks alike": (
        f"{CHECKPOINT}test_alone.py::passed_over", f"{CHECKPOINT}test_alone.py::rank_that_fails",
    ),
    "crafted headers and manifests are refused before a byte is allocated; fuzz": (f"{CHECKPOINT}test_crafted.py",),
}  # fmt: skip
"""Promise -> words of the tests that prove it."""
SERIES = (
    "trainings killed whole, the newest checkpoint damaged, started again: the newest whole one, no restart counted"
)
_FLAGS = {
    "nodes": "1", "min-nodes": "1", "iterations": "40", "sequence-length": "64", "global-batch": "4",
    "persist-interval": "10",
}  # fmt: skip
_COMMITS = 3
"""After so many a training is killed."""


def flip(folder: Path) -> None:
    path = next(folder.glob("rank-*"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


def truncate(folder: Path) -> None:
    os.truncate(next(folder.glob("rank-*")), 5000)


def delete(folder: Path) -> None:
    next(folder.glob("rank-*")).unlink()


def move(folder: Path) -> None:
    folder.rename(folder.parents[3] / "away")


def of_the_future(folder: Path) -> None:
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 7}))


def forget(folder: Path) -> None:
    for name in ("journal", "snapshots"):
        shutil.rmtree(folder.parents[1] / name, ignore_errors=True)


def forget_and_flip(folder: Path) -> None:
    forget(folder)
    flip(folder)


KINDS: dict[str, tuple[Callable[[Path], None], int]] = {
    "a bit flipped": (flip, 2), "truncated": (truncate, 2), "deleted": (delete, 2), "moved away": (move, 2),
    "of a later version": (of_the_future, 2), "journal gone": (forget, 1), "journal gone, a bit flipped":
    (forget_and_flip, 2),
}  # fmt: skip
"""What is done to the newest checkpoint, and which one from the end is to be begun from then."""


def series(_: argparse.Namespace) -> Iterator[Line]:
    """One training, killed whole; then, for each kind of damage, the same store damaged and the same step started."""
    right, wrong = [], []
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        training = _training(folder)
        training.start()
        wait_until(lambda: len(_committed(folder)) >= _COMMITS or training.over(), f"{_COMMITS} commits")
        training.kill_all()
        for part in ("store", "run"):
            shutil.copytree(folder / part, folder / f"{part}.kept")
        for kind, (damage, wanted) in KINDS.items():
            for part in ("store", "run"):
                shutil.rmtree(folder / part)
                shutil.copytree(folder / f"{part}.kept", folder / part)
            before = _committed(folder)
            damage(before[-1])
            training.start()
            code = training.finish()
            said = "is passed over: " in training.log.read_text().rpartition("the job begins")[2] or wanted == 1
            began = [record["round"]["restore"] for record in training.records() if record["kind"] == "RoundFormed"][-1]
            faults = [record for record in training.records() if record["kind"] == "WorkerFaulted"]
            iteration = int(before[-wanted].name.rpartition("-")[2])
            well = code == 0 and said and not faults and (began or {}).get("iteration") == iteration
            (right if well else wrong).append(kind)
            training.kill_all()
    told = f"{len(right)} of {len(KINDS)} kinds" + (f"; not: {', '.join(wrong)}" if wrong else "")
    yield Line(SERIES, f"{len(KINDS)} of {len(KINDS)} kinds", told, not wrong)


def _committed(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "store").glob(f"jobs/*/checkpoints/*/{MANIFEST}"))


def _training(folder: Path) -> TrainStep:
    """A step that trains the tiny model on this repository's own words for seconds."""
    data, told = folder / "data", {}
    data.mkdir()
    text = (ROOT / "runtime/job/messages.py").read_bytes() * 5
    for split, part in (("train", text[:40_000]), ("validation", text[40_000:42_000])):
        with IndexedWriter(data / split, np.uint16) as writer:
            writer.add(np.frombuffer(part, dtype=np.uint8).astype(np.uint16))
        told[split] = {"prefix": split, "documents": 1, "tokens": len(part)}
    meta = {"version": 1, **told, "tokenizer": "tokenizer.json", "vocab_size": 257, "eod": 256, "dtype": "uint16"}
    (data / "dataset.json").write_text(json.dumps(meta))
    (folder / "run").mkdir()
    return TrainStep(folder / "run", folder / "store", flags={**_FLAGS, "dataset": str(data)})


MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {SERIES: series}
"""Promise -> what measures it."""
