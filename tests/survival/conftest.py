"""A small dataset and a small model: a training of two nodes takes seconds. And what an undisturbed one gives."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROUNDS, TrainStep, busy, tensors
from tests.once import made_once
from tests.trained import trained

__all__ = ["trained"]

SCRIPT = Path(__file__).with_name("small_script.py")
VOCABULARY = 257
WARMING = {"iterations": "400"}


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token dataset of bytes: 40,000 tokens to train on."""
    return made_once(tmp_path_factory, "dataset", write_dataset)


def write_dataset(folder: Path) -> None:
    """Of this project's own text."""
    import numpy as np

    from everstep.runtime.data.indexed_dataset import IndexedWriter

    text = (Path(__file__).parents[2] / "runtime/protocol/messages.py").read_bytes() * 10
    splits_meta = {}
    for split, part in (("train", text[:40_000]), ("validation", text[40_000:42_000])):
        documents = [part[start : start + 1000] for start in range(0, len(part), 1000)]
        with IndexedWriter(folder / split, np.uint16) as writer:
            for document in documents:
                writer.add(np.frombuffer(document, dtype=np.uint8).astype(np.uint16))
        splits_meta[split] = {"prefix": split, "documents": len(documents), "tokens": len(part)}
    facts = {
        "version": 1,
        **splits_meta,
        "tokenizer": "tokenizer.json",
        "vocab_size": VOCABULARY,
        "eod": 256,
        "dtype": "uint16",
    }
    (folder / "dataset.json").write_text(json.dumps(facts))


@pytest.fixture(scope="session")
def flags(dataset: Path) -> dict[str, str]:
    """A training of 60 iterations on 2 nodes; with more faults in a row it is longer."""
    return {
        "dataset": str(dataset), "script": str(SCRIPT), "nodes": "2", "min-nodes": "1",
        "iterations": str(40 + 20 * ROUNDS), "sequence-length": "64", "global-batch": "6", "persist-interval": "20",
        "max-relaunches": str(20 + 5 * ROUNDS), "replacement-wait-s": "120",
    }  # fmt: skip


@pytest.fixture(params=["anew", pytest.param("survive", marks=pytest.mark.long)])
def training(request: pytest.FixtureRequest, tmp_path: Path, flags: dict[str, str]) -> Iterator[TrainStep]:
    """A training in a folder of its own, whose workers start anew in each round, or survive, or ("spares") survive
    beside warm spares, where a test asks for it; whatever a failed test leaves is ended."""
    script = {} if request.param == "anew" else {"script-args": "--survive"}
    script |= {"spares": "1"} if request.param == "spares" else {}
    step = TrainStep(tmp_path / "run", tmp_path / "store", flags=flags | script)
    yield step
    step.kill_all()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, flags: dict[str, str]) -> dict[str, bytes]:
    """The final tensors (weights and optimizer) of a training that nothing happened to."""
    return undisturbed_tensors(tmp_path_factory, "undisturbed", flags)


@pytest.fixture(scope="session")
def long_undisturbed(tmp_path_factory: pytest.TempPathFactory, flags: dict[str, str]) -> dict[str, bytes]:
    """The same of a training of so many iterations that spares become warm beside it."""
    return undisturbed_tensors(tmp_path_factory, "long-undisturbed", flags | WARMING)


def undisturbed_tensors(factory: pytest.TempPathFactory, name: str, flags: dict[str, str]) -> dict[str, bytes]:
    """Trained once in a session of tests."""

    def train(folder: Path) -> TrainStep:
        return TrainStep(folder / "run", folder / "store", flags=flags)

    def make(folder: Path) -> None:
        step = train(folder)
        step.start()
        try:
            assert step.finish() == 0, step.log.read_text()
        finally:
            step.kill_all()

    return tensors(train(made_once(factory, name, make)).checkpoint())


@pytest.fixture(scope="session", autouse=True)
def busy_machine() -> Iterator[None]:
    """In a soak."""
    with busy():
        yield
