"""What every store promises. A new kind of store joins by a row in `KINDS`; S3 is a real MinIO.

The third kind is that MinIO behind a wire on which each seventh request is refused, cut before or after it was done,
slow, or answered by half.
"""

import array
import multiprocessing
import random
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.runtime.store import DirectoryStore, NoSuchKey, Store, StoreError, open_store
from tests.examples import examples
from tests.harness import PATIENCE_S
from tests.minio import MinIO
from tests.store.wire import random_trouble, through

KINDS = ("directory", "s3", "s3 on a bad wire")


@pytest.fixture(params=KINDS)
def new_uri(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], str]]:
    """Each call gives the URI of another empty store."""
    if request.param == "directory":
        yield lambda: str(tmp_path_factory.mktemp("store") / "made-by-opening")
        return
    s3: MinIO = request.getfixturevalue("s3")
    if request.param == "s3":
        yield s3.new_prefix
        return
    with through(s3.endpoint, random_trouble(seed=zlib.crc32(request.node.nodeid.encode()))) as wire:
        monkeypatch.setenv("MINIO_ENDPOINT", wire.endpoint)
        yield s3.new_prefix


@pytest.fixture
def store(new_uri: Callable[[], str]) -> Store:
    return open_store(new_uri())


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


def test_an_empty_buffer_and_a_range_beyond_the_end_read_nothing(store: Store) -> None:
    store.put("a", b"123")
    store.put("empty", b"")
    store.read_into("a", 3, memoryview(b""))
    assert store.get("a", 1, 0) == store.get("a", 3) == store.get("a", 9, 5) == store.get("empty", 0, 4) == b""


def test_large_objects_arrive_and_come_back_whole_and_in_ranges(store: Store, tmp_path: Path) -> None:
    """Larger than one request carries, and no multiple of a part."""
    data = random.Random(1).randbytes((40 << 20) + 12345)
    (tmp_path / "file").write_bytes(data)
    store.put("view", memoryview(data))
    store.put("file", tmp_path / "file")
    assert [entry.size for entry in store.list("")] == [len(data)] * 2
    buffer = bytearray(33 << 20)
    for key in ("view", "file"):
        store.read_into(key, 1001, memoryview(buffer))
        assert buffer == data[1001 : 1001 + len(buffer)]
    assert store.get("file") == data


def test_a_source_of_other_items_than_bytes_is_put_as_its_bytes(store: Store) -> None:
    store.put("numbers", memoryview(array.array("I", [1, 2, 3])))
    numbers = array.array("I", [0, 0, 0])
    store.read_into("numbers", 0, memoryview(numbers))
    assert list(numbers) == [1, 2, 3]


def test_a_file_that_is_not_there_is_told(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        store.put("a", tmp_path / "nowhere")
    assert list(store.list("")) == []


def test_threads_share_a_store(store: Store) -> None:
    def work(number: int) -> bool:
        key, data = f"t/{number}", bytes([number]) * 5000
        store.put(key, data)
        return store.get(key) == data and store.create(f"c/{number % 5}", data)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(40))) == 5


def test_a_store_opened_read_only_reads_and_makes_nothing(new_uri: Callable[[], str]) -> None:
    uri = new_uri()
    with pytest.raises(NoSuchKey):
        open_store(uri, read_only=True).get("a")
    assert not Path(uri).exists()
    open_store(uri).put("a", b"1")
    assert open_store(uri, read_only=True).get("a") == b"1"


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


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=KEYS, prefix=st.sampled_from(["", "a", "a/", "a-", "a/b", "ab/0", "0", "x"]))
def test_listing_gives_the_keys_of_the_prefix_in_key_order(
    new_uri: Callable[[], str], keys: list[str], prefix: str
) -> None:
    leaves = [key for key in keys if not any(inner.startswith(key + "/") for inner in keys)]
    store = open_store(new_uri())
    for key in leaves:
        store.put(key, key.encode())
    entries = list(store.list(prefix))
    assert [entry.key for entry in entries] == sorted(key for key in leaves if key.startswith(prefix))
    assert all(entry.size == len(entry.key) and entry.modified > 0 for entry in entries)


def _claim(uri: str, names: list[str], writer: int, barrier, won) -> None:
    store = open_store(uri)
    barrier.wait(PATIENCE_S)
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
    winners, exited = [], 0
    while exited < writers:
        is_winner = won.get(timeout=PATIENCE_S)
        exited += is_winner is None
        winners += [is_winner] if is_winner else []
    for process in processes:
        process.join(30)
    assert sorted(name for name, _ in winners) == names
    assert all(store.get(name) == str(writer).encode() for name, writer in winners)
    assert [entry.key for entry in store.list("")] == names


def test_an_uri_opens_the_same_store_again(store: Store) -> None:
    store.put("a", b"1")
    assert open_store(store.uri).get("a") == b"1"


def test_other_schemes_are_refused_by_name() -> None:
    with pytest.raises(StoreError, match="not gs://"):
        open_store("gs://bucket/prefix")


def test_a_file_uri_is_a_directory(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://{tmp_path}/x"), DirectoryStore)
