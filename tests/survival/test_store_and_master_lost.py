"""The store does not answer, and the step, which is the master, is killed meanwhile; both come back later."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.runtime.store import open_store
from tests.harness import TrainStep, kill, tensors, wait_until
from tests.minio import MinIO
from tests.store.wire import Trouble, Wire, calm, through


@pytest.fixture
def wire(s3: MinIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Between the training and its store."""
    with through(s3.endpoint) as wire:
        monkeypatch.setenv("MINIO_ENDPOINT", wire.endpoint)
        yield wire


def is_lost(method: str, path: str, query: str) -> Trouble:
    """The store answers nobody."""
    return Trouble.RESET


def fetched(uri: str, folder: Path) -> Path:
    """The objects of a checkpoint, as files."""
    folder.mkdir()
    store = open_store(uri, read_only=True)
    for entry in store.list(""):
        (folder / entry.key).write_bytes(store.get(entry.key))
    return folder


def said(training: TrainStep, text: str) -> int:
    """How often the logs of the run have it."""
    logs = [training.log, *training.node_logs()]
    return sum(log.read_text(errors="replace").count(text) for log in logs if log.exists())


def test_a_training_whose_store_and_master_are_lost_together_trains_on_and_waits_for_both(
    training: TrainStep, s3: MinIO, wire: Wire, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    training.store = s3.new_prefix()
    training.start()
    at = training.wait_iteration(10)
    wire.plan = is_lost
    step = training.step()
    assert step is not None, training.last_words()
    kill(step)
    training.finish()
    training.start()
    for text in ("waits for the store, at most ", "cannot be read either; waits for both: "):
        wait_until(lambda text=text: said(training, text), text)
    wait_until(lambda: training.iteration() > at, "an iteration without either")
    assert wire.suffered[Trouble.RESET]
    wire.plan = calm
    assert training.finish() == 0, training.last_words()
    assert claims(training) == 2
    assert tensors(fetched((training.outputs / "checkpoint").read_text(), tmp_path / "checkpoint")) == undisturbed
    assert training.leftovers() == []


def claims(training: TrainStep) -> int:
    """Masters that the job has had."""
    return [record["kind"] for record in training.records()].count("MasterClaimed")
