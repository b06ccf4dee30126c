"""What every store promises. A new kind of store joins by a row in `KINDS`."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.store import DirectoryStore, NoSuchKey, Store, StoreError, open_store

KINDS: dict[str, Callable[[Path], str]] = {"directory": lambda folder: str(folder / "store")}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(KINDS[request.param](tmp_path))


def test_what_is_put_is_read_whole_and_in_ranges(store: Store) -> None:
    store.put("a/b/object.bin", b"0123456789")
    assert store.get("a/b/object.bin") == b"0123456789"
    assert store.get("a/b/object.bin", 3, 4) == b"3456"
    assert store.get("a/b/object.bin", 8, 10) == b"89"
    buffer = bytearray(4)
    store.read_into("a/b/object.bin", 6, memoryview(buffer))
    assert buffer == b"6789"


def test_a_put_replaces_the_object(store: Store) -> None:
    store.put("a", b"old and long")
    store.put("a", b"new")
    assert store.get("a") == b"new"


def test_a_memoryview_and_a_file_are_put_as_their_bytes(store: Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(data)
    store.put("view", memoryview(bytearray(data)))
    store.put("file", tmp_path / "file")
    assert store.get("view") == store.get("file") == data


def test_an_empty_object_is_an_object(store: Store) -> None:
    assert store.create("empty", b"")
    assert store.get("empty") == b""
    assert [entry.size for entry in store.list("empty")] == [0]


def test_create_succeeds_once_and_keeps_the_first(store: Store) -> None:
    assert store.create("claim", b"first")
    assert not store.create("claim", b"second")
    assert store.get("claim") == b"first"


def test_a_deleted_key_is_free_again_and_deleting_nothing_is_fine(store: Store) -> None:
    store.create("claim", b"first")
    store.delete("claim")
    store.delete("claim")
    assert store.create("claim", b"second")


@pytest.mark.parametrize("read", [lambda s: s.get("no/thing"), lambda s: s.read_into("no/thing", 0, memoryview(b""))])
def test_reading_what_is_not_there_says_so(store: Store, read: Callable[[Store], object]) -> None:
    store.put("no", b"a key that is also the beginning of the missing one's path")
    with pytest.raises(NoSuchKey, match="no/thing"):
        read(store)


def test_an_object_that_is_too_short_is_an_error(store: Store) -> None:
    store.put("short", b"123")
    with pytest.raises(StoreError, match="short"):
        store.read_into("short", 1, memoryview(bytearray(4)))


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/./b", "a b", "a\n", "~tmp", "ä"])
def test_what_is_no_key_is_refused_by_every_call(store: Store, key: str) -> None:
    for call in (store.get, store.delete, lambda k: store.put(k, b""), lambda k: store.create(k, b"")):
        with pytest.raises(ValueError, match="not a key"):
            call(key)


KEYS = st.lists(
    st.lists(st.sampled_from(["a", "b", "a-b", "a.b", "ab", "000001", "9"]), min_size=1, max_size=3).map("/".join),
    unique=True,
    max_size=12,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(keys=KEYS, prefix=st.sampled_from(["", "a", "a/", "a-", "a/b", "ab/0", "0", "x"]))
def test_listing_gives_the_keys_of_the_prefix_in_key_order(kind: str, keys: list[str], prefix: str) -> None:
    leaves = [key for key in keys if not any(other.startswith(key + "/") for other in keys)]
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(KINDS[kind](Path(folder)))
        for key in leaves:
            store.put(key, key.encode())
        found = list(store.list(prefix))
    assert [entry.key for entry in found] == sorted(key for key in leaves if key.startswith(prefix))
    assert all(entry.size == len(entry.key) and entry.modified > 0 for entry in found)


def _claim(uri: str, names: list[str], writer: int, barrier, won) -> None:
    store = open_store(uri)
    barrier.wait(30)
    for name in names:
        if store.create(name, str(writer).encode()):
            won.put((name, writer))
    won.put(None)


def test_of_many_processes_that_create_one_key_exactly_one_wins(store: Store) -> None:
    context = multiprocessing.get_context("spawn")
    names, writers = [f"race/{n:06d}" for n in range(40)], 4
    barrier, won = context.Barrier(writers), context.Queue()
    processes = [context.Process(target=_claim, args=(store.uri, names, n, barrier, won)) for n in range(writers)]
    for process in processes:
        process.start()
    winners, ended = [], 0
    while ended < writers:
        told = won.get(timeout=60)
        ended += told is None
        winners += [told] if told else []
    for process in processes:
        process.join(30)
    assert sorted(name for name, _ in winners) == names
    assert all(store.get(name) == str(writer).encode() for name, writer in winners)
    assert [entry.key for entry in store.list("")] == names


def test_an_uri_opens_the_same_store_again(store: Store) -> None:
    store.put("a", b"1")
    assert open_store(store.uri).get("a") == b"1"


def test_other_schemes_are_refused_by_name() -> None:
    with pytest.raises(StoreError, match="s3://"):
        open_store("s3://bucket/prefix")


def test_a_file_uri_is_a_directory(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://{tmp_path}/x"), DirectoryStore)
