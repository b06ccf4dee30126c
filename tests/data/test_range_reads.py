"""Tokens that are read by ranges: the same as of the file, in bounded memory."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.data import DatasetError, IndexedDataset, IndexedWriter, RangedTokens, open_dataset
from everstep.runtime.store import DirectoryStore, open_store
from everstep.runtime.store.cache import BYTES, FOLDER
from tests.minio import MinIO


class CountingStore(DirectoryStore):
    """Counts what is asked for."""

    asked = 0

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.asked += 1
        return super().get(key, start, length)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CountingStore:
    counting_store = CountingStore(tmp_path_factory.mktemp("ranged"))
    counting_store.put("a.bin", np.arange(1000, dtype=np.uint16).tobytes())
    return counting_store


@given(st.lists(st.tuples(st.integers(-5, 1100), st.integers(-5, 1100))), st.sampled_from([2, 6, 64, 4096]))
def test_any_ranges_in_any_order_are_those_of_the_array(
    store: CountingStore, ranges: list[tuple[int, int]], block: int
) -> None:
    tokens, array = RangedTokens(store, "a.bin", 1000, np.dtype(np.uint16), block, 3), np.arange(1000)
    for start, end in ranges:
        assert tokens[start:end].tolist() == array[start:end].tolist()
        assert len(tokens._cache) <= 3
    assert (len(tokens), int(tokens[999]), int(tokens[-1])) == (1000, 999, 999)


def test_what_was_read_last_is_not_asked_for_again(store: CountingStore) -> None:
    tokens = RangedTokens(store, "a.bin", 1000, np.dtype(np.uint16), block_bytes=200, blocks=2)
    before = store.asked
    for start in (0, 10, 100, 0, 110):
        assert len(tokens[np.int64(start) : np.int64(start) + 5]) == 5
    assert store.asked - before == 2
    tokens[500:501], tokens[0:1]
    assert store.asked - before == 4
    with pytest.raises(IndexError):
        tokens[1000]


def test_an_object_that_goes_or_ends_early_is_told(store: CountingStore) -> None:
    with pytest.raises(DatasetError, match="ends at byte 2000"):
        RangedTokens(store, "a.bin", 1001, np.dtype(np.uint16))[0:1001]
    with pytest.raises(DatasetError, match="was removed"):
        RangedTokens(store, "gone.bin", 1, np.dtype(np.uint16))[0]


def test_a_dataset_in_a_store_is_read_there_when_it_is_more_than_may_be_kept_here(
    tmp_path: Path, s3: MinIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, count in {"train": 3000, "validation": 5}.items():
        with IndexedWriter(tmp_path / split, "uint16") as writer:
            writer.add(range(count))
    splits = {
        split: {"prefix": split, "documents": 1, "tokens": n} for split, n in (("train", 3000), ("validation", 5))
    }
    store = open_store(s3.new_prefix())
    for name in ("train.bin", "train.idx", "validation.bin", "validation.idx"):
        store.put(name, tmp_path / name)
    store.put("tokenizer.json", b"{}")
    store.put("dataset.json", json.dumps({"version": 1, "tokenizer": "tokenizer.json", **splits}).encode())
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    monkeypatch.setenv(BYTES, "1000")
    opened = open_dataset(store.uri)
    assert isinstance(opened.tokens, RangedTokens)
    assert opened.tokens[10:2990].tolist() == list(range(10, 2990))
    assert opened.tokenizer.read_bytes() == b"{}"
    assert not [path for path in (tmp_path / "cache").rglob("*.bin") if path.is_file()]
    monkeypatch.setenv(BYTES, "1000000")
    assert isinstance(open_dataset(store.uri).tokens, np.memmap)
    (document,) = IndexedDataset(f"{store.uri}/train")
    assert document.tolist() == list(range(3000))
    store.delete("train.bin")
    with pytest.raises(DatasetError, match=r"train\.bin: no such file"):
        IndexedDataset(f"{store.uri}/train")
