"""Opening a finished dataset, and what is refused."""

import json
from pathlib import Path

import pytest

from everstep.runtime.data import DatasetError, IndexedWriter, open_dataset
from everstep.runtime.store import Unavailable


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    for split, documents in {"train": [[1, 2, 3], [4, 5]], "validation": []}.items():
        with IndexedWriter(tmp_path / split, "uint16") as writer:
            for document in documents:
                writer.add(document)
    meta = {
        "version": 1,
        "train": {"prefix": "train", "documents": 2, "tokens": 5},
        "validation": {"prefix": "validation", "documents": 0, "tokens": 0},
        "tokenizer": "tokenizer.json",
        "vocab_size": 6,
        "eod": 5,
        "dtype": "uint16",
    }
    (tmp_path / "dataset.json").write_text(json.dumps(meta))
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_split_is_its_tokens_and_where_documents_begin(dataset: Path, scheme: str) -> None:
    opened = open_dataset(f"{scheme}{dataset}")
    assert opened.tokens[:].tolist() == [1, 2, 3, 4, 5]
    assert opened.documents.tolist() == [0, 3, 5]
    assert (opened.split, opened.vocab_size, opened.eod) == ("train", 6, 5)
    assert opened.tokenizer == dataset / "tokenizer.json"


def refusal_of(uri: str) -> str:
    with pytest.raises(DatasetError) as error:
        open_dataset(uri)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_split_without_tokens_is_refused(dataset: Path) -> None:
    assert "no tokens" in refusal_of(f"{dataset}#validation")


def test_an_unknown_split_is_refused_by_name(dataset: Path) -> None:
    assert "no split test" in refusal_of(f"{dataset}#test")


def test_other_schemes_are_refused_by_name() -> None:
    assert "not gs://" in refusal_of("gs://bucket/dataset")


def test_a_store_that_does_not_answer_is_no_fault_of_the_dataset(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr("everstep.runtime.data.dataset.fetch_folder", no_answer)
    with pytest.raises(Unavailable, match="no answer"):
        open_dataset(str(dataset))


def test_an_unfinished_dataset_is_refused(dataset: Path) -> None:
    (dataset / "dataset.json").unlink()
    assert "no finished dataset" in refusal_of(str(dataset))


def test_a_manifest_that_is_none_is_refused(dataset: Path) -> None:
    (dataset / "dataset.json").write_text("{")
    assert "not JSON" in refusal_of(str(dataset))


def test_files_that_do_not_fit_the_manifest_are_refused(dataset: Path) -> None:
    with IndexedWriter(dataset / "train", "uint16") as writer:
        writer.add([1])
    assert "make the dataset again" in refusal_of(str(dataset))
