"""Files of an S3 store: a real MinIO."""

import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from minio import Minio
from pyarrow import parquet, table

from everstep.runtime.store import Store, StoreError, Unavailable, open_store, s3_requests
from everstep.runtime.text import (
    DocumentReader,
    TextError,
    extents,
    file_version,
    find_files,
    open_bytes,
    piece_of,
    source,
)
from tests.minio import MinIO
from tests.store.wire import Trouble, Wire, calm, through
from tests.text.test_ranges import FORMATS

LINES = [f'{{"text": "document {number} {"x" * (number % 50)}"}}\n'.encode() for number in range(3000)]
TEXTS = [line[10:-3].decode() for line in LINES]


@pytest.fixture
def store(s3: MinIO) -> Store:
    return open_store(s3.new_prefix())


def read(names: list[str]) -> list[str | None]:
    """Each file in two ranges."""
    texts = []
    for extent in (extent for name in names for extent in extents(name)):
        half = extent.size // 2 if extent.borders is None else extent.borders[len(extent.borders) // 2]
        for start, end in ((0, half), (half, extent.size)):
            texts += [text for (text,) in DocumentReader(("text",)).read(piece_of(extent, start, end))]
    return texts


def test_every_byte_is_the_objects_wherever_it_is_read(store: Store) -> None:
    rng = random.Random(7)
    data = rng.randbytes(9 << 20)  # more than one request's
    store.put("a.bin", data)
    with open_bytes(f"{store.uri}/a.bin") as file:
        assert file.read() == data
        for _ in range(50):
            at, count = rng.randrange(len(data) + 10), rng.choice([1, 100, 1 << 20])
            file.seek(at)
            assert file.read(count) == data[at : at + count]
    assert file_version(f"{store.uri}/a.bin").size == len(data)


def test_objects_are_read_as_files_are(store: Store, tmp_path: Path) -> None:
    store.put("c/plain.jsonl", b"".join(LINES))
    store.put("c/frames.jsonl.zst", b"".join(zstandard.compress(line) for line in LINES))
    parquet.write_table(table({"text": TEXTS}), tmp_path / "rows.parquet", row_group_size=700)
    store.put("c/rows.parquet", tmp_path / "rows.parquet")
    for name in ("plain.jsonl", "frames.jsonl.zst", "rows.parquet"):
        assert read([f"{store.uri}/c/{name}"]) == TEXTS


def test_objects_are_found_by_name_pattern_and_folder(store: Store) -> None:
    for key in ("c/data_10.jsonl", "c/data_2.jsonl", "c/notes.md", "c/d/e.txt", "f.txt"):
        store.put(key, b"x")

    def names(patterns: str) -> list[str]:
        return [name.removeprefix(f"{store.uri}/") for name in find_files(patterns, "--input")]

    assert names(f"{store.uri}/c/") == names(f"{store.uri}/c") == ["c/data_2.jsonl", "c/data_10.jsonl"]
    assert names(f"{store.uri}/c/data_?.jsonl,{store.uri}/f.txt") == ["c/data_2.jsonl", "f.txt"]
    assert names(f"{store.uri}/**/*.txt") == ["c/d/e.txt", "f.txt"]
    assert names(f"{store.uri}/c/data_[12]*") == ["c/data_2.jsonl", "c/data_10.jsonl"]
    for wrong in ("nothing.jsonl", "c/*.parquet", "d"):
        with pytest.raises(TextError, match="matches no file"):
            find_files(f"{store.uri}/{wrong}", "--input")


def test_objects_under_others_names_are_read_and_none_is_left_out(store: Store, s3: MinIO) -> None:
    """Names that no store of ours would give: of Hive's partitions, with spaces, in other alphabets."""
    place = s3.endpoint.removeprefix("http://")
    client = Minio(endpoint=place, access_key=s3.access_key, secret_key=s3.secret_key, secure=False)
    bucket, _, prefix = store.uri.removeprefix("s3://").partition("/")
    names = ["lang=de/a b+(1).jsonl", "lang=de/caf\u00e9.jsonl"]
    for name, data in ((names[0], b"".join(LINES)), (names[1], b"".join(LINES)), ("lang=de/", b"")):
        key = f"{prefix}/{name}"
        client.put_object(bucket_name=bucket, object_name=key, data=io.BytesIO(data), length=len(data))
    expected = [f"{store.uri}/{name}" for name in names]
    for pattern in ("lang=de", "lang=de/*", "**/*.jsonl"):
        assert find_files(f"{store.uri}/{pattern}", "--input") == expected
    assert find_files(expected[1], "--input") == expected[1:]
    assert read(expected) == 2 * TEXTS


def test_an_object_that_goes_away_or_shrinks_meanwhile_is_told_by_name(store: Store) -> None:
    store.put("a.txt", b"x" * 200_000)
    with open_bytes(f"{store.uri}/a.txt") as file:
        file.read(10)
        store.put("a.txt", b"x")
        with pytest.raises(StoreError, match=r"a\.txt: became shorter"):
            file.read()
        store.delete("a.txt")
        file.seek(0)
        with pytest.raises(StoreError, match=r"a\.txt: was removed"):
            file.read()


def test_a_store_that_is_not_set_up_is_told_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MINIO_ENDPOINT", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TextError, match=r"--input .*MINIO_ENDPOINT or AWS_ENDPOINT_URL is not set"):
        find_files("s3://nowhere/a.jsonl", "--input")


@pytest.fixture
def wire(s3: MinIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """The way to the store, on which every request has one attempt."""
    with through(s3.endpoint) as way:
        monkeypatch.setenv("MINIO_ENDPOINT", way.endpoint)
        monkeypatch.setattr(s3_requests, "ATTEMPTS", 1)
        source._open_bucket.cache_clear()
        yield way
        source._open_bucket.cache_clear()


def busy_reading(method: str, path: str, query: str) -> Trouble:
    """Objects are listed, but not read."""
    return Trouble.BUSY if method == "GET" and "list-type" not in query else Trouble.NONE


@pytest.mark.parametrize("name", FORMATS)
def test_a_store_that_does_not_answer_for_a_while_is_no_damaged_file(store: Store, wire: Wire, name: str) -> None:
    uri = f"{store.uri}/{name}"
    store.put(name, FORMATS[name]())
    pieces = [piece_of(extent, 0, extent.size) for extent in extents(uri)]
    reader = DocumentReader(("text",))
    wire.plan = busy_reading
    with pytest.raises(Unavailable):
        [texts for piece in pieces for texts in reader.read(piece)]
    if name != "a.jsonl":  # Of which only the size is needed.
        with pytest.raises(Unavailable):
            extents(uri)
    wire.plan = lambda *_: Trouble.BUSY
    for ask in (extents, lambda uri: find_files(uri, "--input")):
        with pytest.raises(Unavailable):
            ask(uri)
    wire.plan = calm
    assert [text for piece in pieces for (text,) in DocumentReader(("text",)).read(piece)]
