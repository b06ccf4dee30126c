"""Large objects of a directory go past the page cache, whole and in place however they lie, and without it as well."""

import errno
import os
from collections.abc import Callable
from fcntl import F_GETFL, fcntl
from mmap import mmap
from pathlib import Path

import pytest

from everstep.runtime.store import DirectoryStore, StoreError, direct, directory
from everstep.runtime.store.direct import BLOCK

SIZE = 5 * BLOCK + 77
CHUNK = 2 * BLOCK


class Disk:
    """Sees which bytes go by which way; can refuse the one past the cache, at once or when it is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
        self.past, self.usual = 0, 0
        self._open, self._pwrite, self._preadv, self._refuses = os.open, os.pwrite, os.preadv, refuses
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "pwrite", lambda file, data, at: self.count_bytes(file, self._pwrite, data, at))
        monkeypatch.setattr(os, "preadv", lambda file, views, at: self.count_bytes(file, self._preadv, views, at))
        monkeypatch.setattr(directory, "_CHUNK", CHUNK)
        monkeypatch.setattr(direct, "DIRECT_FROM_BYTES", SIZE)

    def open(self, path: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_DIRECT and self._refuses == "to open":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._open(path, flags, mode, **more)

    def count_bytes(self, file: int, move: Callable[..., int], what: object, at: int) -> int:
        past = bool(fcntl(file, F_GETFL) & os.O_DIRECT)
        if past and self._refuses == "to move":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        count = move(file, what, at)
        self.past, self.usual = self.past + count * past, self.usual + count * (not past)
        return count


@pytest.mark.parametrize("refuses", ["", "to open", "to move"])
@pytest.mark.parametrize("shift", [0, 13])
def test_what_is_written_and_read_is_the_same_by_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str, shift: int
) -> None:
    content = os.urandom(SIZE)
    memory, back = memoryview(mmap(-1, SIZE + BLOCK)), memoryview(mmap(-1, SIZE + BLOCK))
    memory[shift : shift + SIZE] = content
    disk, store = Disk(monkeypatch, refuses), DirectoryStore(tmp_path)
    expected = 0 if refuses or shift else 5 * BLOCK
    store.put("key", memory[shift : shift + SIZE])
    assert (disk.past, disk.usual) == (expected, SIZE - expected)
    store.read_into("key", 0, back[shift : shift + SIZE])
    assert (disk.past, disk.usual) == (2 * expected, 2 * (SIZE - expected))
    assert back[shift : shift + SIZE] == content == (tmp_path / "key").read_bytes()


@pytest.mark.parametrize("start", [BLOCK, 100])
def test_any_part_can_be_read(tmp_path: Path, start: int) -> None:
    content, buffer = os.urandom(SIZE), memoryview(mmap(-1, SIZE - start))
    store = DirectoryStore(tmp_path)
    store.put("key", content)
    store.read_into("key", start, buffer)
    assert buffer == content[start:]


def test_whoever_reads_while_an_object_is_replaced_reads_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, buffer, opened = DirectoryStore(tmp_path), memoryview(mmap(-1, SIZE)), os.open
    store.put("key", b"1" * SIZE)

    def transfer(path: str | Path, flags: int, mode: int = 0o777, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECT:
            (tmp_path / "other").write_bytes(b"2" * SIZE)
            (tmp_path / "other").rename(tmp_path / "key")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", transfer)
    monkeypatch.setattr(direct, "DIRECT_FROM_BYTES", SIZE)
    store.read_into("key", 0, buffer)
    assert buffer == b"1" * SIZE
    assert (tmp_path / "key").read_bytes() == b"2" * SIZE


def test_a_disk_that_takes_no_more_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(StoreError, match="key: cannot write"):
        DirectoryStore(tmp_path).put("key", b"data")
    assert os.listdir(tmp_path) == []
