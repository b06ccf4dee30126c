"""A limit of bytes a second, in a time of its own."""

import threading
import time
from pathlib import Path

import pytest

from everstep.runtime.store import DirectoryStore, open_store
from everstep.runtime.store.pace import CHUNK_BYTES, Pace
from tests.minio import MinIO


class Clock:
    """Passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_bytes_take_the_time_that_the_limit_says() -> None:
    clock = Clock()
    pace = Pace(1_000_000, clock.read, clock.sleep)
    for _ in range(50):
        pace.take(100_000)
    assert clock.now - 100 == pytest.approx(5.0, abs=0.2)


def test_time_that_was_not_used_is_not_caught_up() -> None:
    clock = Clock()
    pace = Pace(1_000_000, clock.read, clock.sleep)
    clock.now += 3600
    began = clock.now
    for _ in range(20):
        pace.take(100_000)
    assert clock.now - began == pytest.approx(2.0, abs=0.2)


def test_without_a_limit_nothing_waits_and_pieces_are_as_large_as_asked() -> None:
    clock = Clock()
    pieces = [
        len(piece)
        for piece in Pace(0, clock.read, clock.sleep).slices(memoryview(bytes(10 * CHUNK_BYTES)), 4 * CHUNK_BYTES)
    ]
    assert pieces == [4 * CHUNK_BYTES, 4 * CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert not clock.slept


def test_pieces_come_in_order_and_whole_at_the_limit() -> None:
    clock = Clock()
    data = bytes(range(256)) * (CHUNK_BYTES // 64)
    pace = Pace(CHUNK_BYTES, clock.read, clock.sleep)
    assert b"".join(bytes(piece) for piece in pace.slices(memoryview(data), 1 << 30)) == data
    assert clock.now - 100 == pytest.approx(4.0, abs=0.2)


def test_threads_share_one_limit() -> None:
    slept: list[float] = []
    pace = Pace(1_000_000, lambda: 100.0, slept.append)
    threads = [threading.Thread(target=pace.take, args=(500_000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(slept) == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_a_directory_keeps_the_limit_too(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "file").write_bytes(bytes(10 * CHUNK_BYTES))
    store = DirectoryStore(tmp_path / "store", pace=Pace(CHUNK_BYTES, clock.read, clock.sleep))
    store.put("view", memoryview(bytes(4 * CHUNK_BYTES)))
    store.put("file", tmp_path / "file")
    assert clock.now - 100 == pytest.approx(14.0, abs=0.3)
    assert store.get("file") == bytes(10 * CHUNK_BYTES)


def test_an_upload_in_parts_keeps_the_limit_together(s3: MinIO) -> None:
    """40 MB/s, four parts at once: 60 MB take 1.5 s at least (less what was saved up)."""
    store = open_store(s3.new_prefix(), bytes_per_s=40e6)
    began = time.monotonic()
    store.put("large", bytes(60_000_000))
    assert time.monotonic() - began > 1.3
    assert store.get("large") == bytes(60_000_000)
