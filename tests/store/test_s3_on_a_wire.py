"""What a network, and a store that is full or does not keep its promise, do to an S3 store: each by itself."""

import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from everstep.runtime.store import NoSuchKey, Store, StoreError, Unavailable, open_store
from everstep.runtime.store.s3_requests import ATTEMPTS
from tests.minio import MinIO
from tests.store.wire import Trouble, Wire, once, through

LARGE = (40 << 20) + 5
PASSING = [Trouble.BUSY, Trouble.TOO_MANY, Trouble.RESET, Trouble.SILENT, Trouble.TRUNCATED, Trouble.SLOW]


@pytest.fixture
def wire(s3: MinIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with through(s3.endpoint) as wire:
        monkeypatch.setenv("MINIO_ENDPOINT", wire.endpoint)
        yield wire


@pytest.fixture
def store(wire: Wire, s3: MinIO) -> Store:
    return open_store(s3.new_prefix())


@pytest.mark.parametrize("trouble", PASSING)
def test_a_create_that_meets_trouble_succeeds_once_also_when_its_success_was_not_heard(
    store: Store, wire: Wire, trouble: Trouble
) -> None:
    wire.plan = once(trouble, "PUT", "claim")
    assert store.create("claim", b"mine")
    assert wire.suffered[trouble] == 1
    wire.plan = once(trouble, "PUT", "claim")
    assert not store.create("claim", b"mine")
    assert store.get("claim") == b"mine"


@pytest.mark.parametrize("trouble", PASSING)
@pytest.mark.parametrize("part", ["partNumber=2", "uploads", "uploadId"])
def test_an_upload_in_parts_that_meets_trouble_is_one_whole_object(
    store: Store, wire: Wire, trouble: Trouble, part: str
) -> None:
    data = bytes(range(256)) * (LARGE // 256)
    wire.plan = once(trouble, "PUT" if part == "partNumber=2" else "POST", part)
    store.put("large", data)
    assert wire.suffered[trouble] == 1
    assert store.get("large") == data


def test_many_idle_connections_that_the_server_has_closed_cost_one_attempt(store: Store, wire: Wire) -> None:
    store.put("key", b"1")
    wire.delay_s = 0.3
    with ThreadPoolExecutor(2 * ATTEMPTS) as readers:
        assert set(readers.map(store.get, ["key"] * 2 * ATTEMPTS)) == {b"1"}
    assert len(wire.connections) > ATTEMPTS
    wire.cut_all()
    store.put("key", b"2")
    assert store.get("key") == b"2"


@pytest.mark.parametrize("trouble", PASSING)
def test_a_range_that_meets_trouble_is_read_again(store: Store, wire: Wire, trouble: Trouble) -> None:
    data = bytes(range(256)) * (LARGE // 256)
    store.put("large", data)
    wire.plan = once(trouble, "GET", "large")
    buffer = bytearray(len(data))
    store.read_into("large", 0, memoryview(buffer))
    assert buffer == data
    assert wire.suffered[trouble] == 1


@pytest.mark.parametrize("trouble", PASSING)
def test_a_listing_that_meets_trouble_is_whole(store: Store, wire: Wire, trouble: Trouble) -> None:
    for number in range(5):
        store.put(f"a/{number}", b"x")
    wire.plan = once(trouble, "GET", "list-type")
    assert [entry.key for entry in store.list("a/")] == [f"a/{number}" for number in range(5)]
    assert wire.suffered[trouble] == 1


def test_a_full_store_is_told_and_the_object_is_not_there(store: Store, wire: Wire) -> None:
    wire.plan = lambda method, path, query: Trouble.FULL if method == "PUT" else Trouble.NONE
    for write in (
        lambda: store.put("small", b"x"),
        lambda: store.put("large", bytes(LARGE)),
        lambda: store.create("claim", b"x"),
    ):
        with pytest.raises(StoreError, match=r"is full .*free some space or choose another --store"):
            write()
    assert list(store.list("")) == []


@pytest.mark.parametrize("trouble", [Trouble.BUSY, Trouble.BROKEN, Trouble.RESET])
def test_a_store_that_does_not_answer_at_the_moment_is_told_from_one_that_refuses(
    trouble: Trouble, store: Store, wire: Wire
) -> None:
    wire.plan = lambda *_: trouble
    for ask in (lambda: store.create("claim", b"x"), lambda: store.get("a"), lambda: list(store.list(""))):
        with pytest.raises(Unavailable):
            ask()
    wire.plan = lambda *_: Trouble.FULL
    with pytest.raises(StoreError) as refused:
        store.create("claim", b"x")
    assert not isinstance(refused.value, Unavailable)
    assert wire.suffered[trouble] > 3


def test_an_upload_that_fails_for_good_leaves_neither_object_nor_parts(store: Store, wire: Wire) -> None:
    requests = []

    def plan(method: str, path: str, query: str) -> Trouble:
        requests.append((method, query))
        return Trouble.RESET if method == "PUT" and "partNumber=3" in query else Trouble.NONE

    wire.plan = plan
    with pytest.raises(StoreError, match="cannot be reached"):
        store.put("large", bytes(LARGE))
    assert any(method == "DELETE" and "uploadId" in query for method, query in requests)
    with pytest.raises(NoSuchKey):
        store.get("large")


def test_a_store_that_ignores_if_none_match_is_refused_by_name(wire: Wire, s3: MinIO) -> None:
    wire.deaf_to = frozenset({"if-none-match"})
    with pytest.raises(StoreError, match=r"ignores `If-None-Match: \*`, so two masters could both believe they lead"):
        open_store(s3.new_prefix())


def test_neither_an_upload_nor_a_read_copies_what_it_moves(s3: MinIO) -> None:
    store, size = open_store(s3.new_prefix()), 100 << 20
    data = bytearray(size)
    data[::4096] = bytes(range(256)) * (size // 4096 // 256)
    tracemalloc.start()
    try:
        with memoryview(data) as view:
            store.put("large", view)
        upload_peak = tracemalloc.get_traced_memory()[1]
        back = bytearray(size)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        store.read_into("large", 0, memoryview(back))
        read = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert back == data
    assert max(upload_peak, read) < 8 << 20
