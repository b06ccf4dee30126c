"""Damaged checkpoints and debris of killed writers: what tests prove, and trainings that are killed and damaged."""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.acceptance import Line
from everstep.runtime.checkpoint.stored.keys import MANIFEST
from everstep.runtime.data.indexed_dataset import IndexedWriter
from everstep.runtime.job.records import RoundFormed, WorkerFaulted
from everstep.runtime.journal.journal import read_journal
from everstep.runtime.store import Store, open_store
from tests.harness import ROOT, TrainStep, wait_until
from tests.minio import running
from tests.store.wire import Trouble, Wire, calm, through

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
        f"{CHECKPOINT}test_standalone.py::passed_over", f"{CHECKPOINT}test_alone.py::rank_that_fails",
    ),
    "ranks without an agent begin from one checkpoint or all fail, whichever of them the store fails": (
        f"{CHECKPOINT}test_agreement.py", f"{CHECKPOINT}test_standalone.py::lists_checkpoints_and_gives_none",
    ),
    "what a killed put left in a bucket is given up when it is old, what a living one writes is not": (
        "tests/store/test_s3_store.py::killed_put", "tests/store/test_s3_store.py::while_others_are_swept",
        "tests/master/test_troubled_store.py::sweeps_what_killed",
    ),
    "crafted headers and manifests are refused before a byte is allocated; fuzz": (f"{CHECKPOINT}test_crafted.py",),
}  # fmt: skip
"""Promise -> words of the tests that prove it."""
SERIES = (
    "trainings killed whole, the newest checkpoint damaged, started again: the newest whole one, no restart counted"
)
IN_MINIO = "the same in MinIO, which answers 404 or 500 for a shard of the newest checkpoint for good"
_FLAGS = {
    "nodes": "1", "min-nodes": "1", "iterations": "40", "sequence-length": "64", "global-batch": "4",
    "persist-interval": "10",
}  # fmt: skip
_COMMITS = 3
"""A training is killed after so many commits."""


Damage = Callable[[Store, list[str]], None]
"""Damages a store with committed checkpoints in these folders, the oldest first."""


def flip(store: Store, folders: list[str]) -> None:
    data = bytearray(store.get(shard(store, folders)))
    data[-100] ^= 4
    store.put(shard(store, folders), bytes(data))


def truncate(store: Store, folders: list[str]) -> None:
    store.put(shard(store, folders), store.get(shard(store, folders))[:5000])


def delete(store: Store, folders: list[str]) -> None:
    store.delete(shard(store, folders))


def rename(store: Store, folders: list[str]) -> None:
    _move(store, shard(store, folders), f"{folders[-1]}/rank-00007.safetensors")


def move(store: Store, folders: list[str]) -> None:
    for entry in [*store.list(f"{folders[-1]}/")]:
        _move(store, entry.key, f"away/{entry.key}")


def swap(store: Store, folders: list[str]) -> None:
    first, second = (f"{folder}/{MANIFEST}" for folder in folders[-2:])
    manifests = store.get(first), store.get(second)
    store.put(second, manifests[0])
    store.put(first, manifests[1])


def of_the_future(store: Store, folders: list[str]) -> None:
    key = f"{folders[-1]}/{MANIFEST}"
    store.put(key, json.dumps(json.loads(store.get(key)) | {"version": 7}).encode())


def forget(store: Store, folders: list[str]) -> None:
    job = folders[-1].rpartition("/checkpoints/")[0]
    for name in ("journal", "archive", "snapshots"):
        for entry in [*store.list(f"{job}/{name}/")]:
            store.delete(entry.key)


def forget_and_flip(store: Store, folders: list[str]) -> None:
    forget(store, folders)
    flip(store, folders)


def shard(store: Store, folders: list[str]) -> str:
    """A shard of the newest checkpoint."""
    return next(entry.key for entry in store.list(f"{folders[-1]}/rank-"))


def _move(store: Store, key: str, to: str) -> None:
    store.put(to, store.get(key))
    store.delete(key)


KINDS: dict[str, tuple[Damage, int]] = {
    "a bit flipped": (flip, 2), "truncated": (truncate, 2), "deleted": (delete, 2), "a shard renamed": (rename, 2),
    "moved away": (move, 2), "two commits swapped": (swap, 3), "of a later version": (of_the_future, 2),
    "journal gone": (forget, 1), "journal gone, a bit flipped": (forget_and_flip, 2),
}  # fmt: skip
"""The damage to the newest checkpoint, and which one from the end the next training must start from."""
ANSWERS = {"404 for one object for good": Trouble.GONE, "500 for one object for good": Trouble.BROKEN}
"""The store's answers for a shard of the newest checkpoint, which it still lists."""


def series(_: argparse.Namespace) -> Iterator[Line]:
    """Kill one training in a directory; for each kind of damage, damage a copy of the store and start the step."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        killed = KilledTraining(Path(name), str(Path(name) / "store"))
        wrong = {
            kind: why
            for kind, (damage, checkpoints_back) in KINDS.items()
            if (why := killed.resume_damaged(damage, checkpoints_back))
        }
    yield _line(SERIES, len(KINDS), wrong)


def answers(_: argparse.Namespace) -> Iterator[Line]:
    """The same in MinIO, which gives wrong answers for one object."""
    wrong: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="everstep-accept-") as name,
        running(Path(name)) as server,
        through(server.endpoint) as wire,
    ):
        environment = {**server.environment, "MINIO_ENDPOINT": wire.endpoint}
        killed = KilledTraining(Path(name), server.new_prefix(), environment)
        for kind, trouble in ANSWERS.items():
            if why := killed.resume_damaged(
                lambda store, folders, t=trouble: _answer(wire, t, shard(store, folders)), 2
            ):
                wrong[kind] = why
            elif not wire.suffered[trouble]:
                wrong[kind] = "the fault did not fire"
            wire.plan = calm
    yield _line(IN_MINIO, len(ANSWERS), wrong)


def _answer(wire: Wire, trouble: Trouble, key: str) -> None:
    wire.plan = lambda _method, path, _query: trouble if path.endswith(f"/{key}") else Trouble.NONE


def _line(promise: str, kinds: int, wrong: Mapping[str, str]) -> Line:
    measured_text = f"{kinds - len(wrong)} of {kinds} kinds" + "".join(
        f"; {kind}: {why}" for kind, why in wrong.items()
    )
    return Line(promise, f"{kinds} of {kinds} kinds", measured_text, not wrong)


class KilledTraining:
    """A training that was killed after some commits, and what it left."""

    def __init__(self, folder: Path, uri: str, environment: Mapping[str, str] = {}) -> None:
        self._folder = folder
        self._store = open_store(uri, environment={**os.environ, **environment})
        self._training = _training(folder, uri, dict(environment))
        self._training.start()
        wait_until(lambda: len(self._committed_folders()) >= _COMMITS or self._training.over(), f"{_COMMITS} commits")
        self._training.kill_all()
        shutil.copytree(folder / "run", folder / "run.kept")
        self._kept = {entry.key: self._store.get(entry.key) for entry in self._store.list("")}

    def resume_damaged(self, damage: Damage, checkpoints_back: int) -> str:
        """Damage what was left and start the step again; returns what the step does wrong, if anything."""
        self._restore()
        before, training, store = self._committed_folders(), self._training, self._store
        job = before[-1].split("/")[1]
        damage(store, before)
        log_size = len(training.log.read_text())
        training.start()
        code = training.finish()
        training.kill_all()
        records = [*read_journal(store, job)]
        began = [record.round.restore for record in records if isinstance(record, RoundFormed)][-1]
        iteration = int(before[-checkpoints_back].rpartition("-")[2])
        if code:
            return f"exit {code}"
        if began is None or began.iteration != iteration:
            return f"began from {began and began.iteration}, not {iteration}"
        if [record for record in records if isinstance(record, WorkerFaulted)]:
            return "a worker was charged"
        if checkpoints_back > 1 and "is skipped: " not in training.log.read_text()[log_size:]:
            return "nothing is said of it"
        return ""

    def _restore(self) -> None:
        for entry in [*self._store.list("")]:
            self._store.delete(entry.key)
        for key, data in self._kept.items():
            self._store.put(key, data)
        shutil.rmtree(self._folder / "run")
        shutil.copytree(self._folder / "run.kept", self._folder / "run")

    def _committed_folders(self) -> list[str]:
        manifests = (entry.key for entry in self._store.list("jobs/") if entry.key.endswith(f"/{MANIFEST}"))
        return sorted(key.rpartition("/")[0] for key in manifests if "/checkpoints/" in key)


def _training(folder: Path, uri: str, environment: dict[str, str]) -> TrainStep:
    """A step that trains the tiny model on this repository's text for some seconds."""
    data, variables = folder / "dataset", {}
    data.mkdir()
    text = (ROOT / "runtime/protocol/messages.py").read_bytes() * 5
    for split, part in (("train", text[:40_000]), ("validation", text[40_000:42_000])):
        with IndexedWriter(data / split, np.uint16) as writer:
            writer.add(np.frombuffer(part, dtype=np.uint8).astype(np.uint16))
        variables[split] = {"prefix": split, "documents": 1, "tokens": len(part)}
    meta = {"version": 1, **variables, "tokenizer": "tokenizer.json", "vocab_size": 257, "eod": 256, "dtype": "uint16"}
    (data / "dataset.json").write_text(json.dumps(meta))
    (folder / "run").mkdir()
    return TrainStep(folder / "run", uri, flags={**_FLAGS, "dataset": str(data)}, environment=environment)


MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {SERIES: series, IN_MINIO: answers}
"""Promise -> its measurement."""
