"""Shared memory is huge pages where the kernel gives some, and all there where it does not."""

import errno
import gc
import mmap
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.runtime.checkpoint.shard import huge_pages
from everstep.runtime.checkpoint.shard.huge_pages import allocate, huge_page_size, map_shared, populate

SIZE = (32 << 20) + 5000
"""No multiple of any page."""


@pytest.fixture
def file() -> Iterator[int]:
    """A new one in shared memory."""
    with tempfile.TemporaryFile(dir="/dev/shm", prefix="mapping-test-") as opened:
        yield opened.fileno()


def kilobytes(file: int, name: str) -> int:
    """Of all mappings of that file in this process, as the kernel tells them."""
    path, mapped, inside = os.readlink(f"/proc/self/fd/{file}"), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(path)
        elif inside and line.startswith(f"{name}:"):
            mapped += int(line.split()[1])
    return mapped


def collapses() -> bool:
    """Is this a kernel that makes huge pages when asked? It has to have whole ones left, too."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    return release >= (6, 1) and 0 < huge_page_size() <= SIZE


def is_all_there(file: int, memory: memoryview) -> None:
    assert os.fstat(file).st_blocks * 512 >= SIZE == len(memory)
    assert (memory.format, memory.readonly, memory[0], memory[-1]) == ("B", False, 0, 0)
    memory[-1] = 7
    assert os.pread(file, 1, SIZE - 1) == b"\7"


@pytest.mark.skipif(not collapses(), reason="this kernel makes no huge pages of shared memory")
def test_new_memory_is_huge_pages_in_every_mapping(file: int) -> None:
    memory = map_shared(file, SIZE)
    allocate(file, memory, 0, SIZE)
    is_all_there(file, memory)
    here = kilobytes(file, "ShmemPmdMapped")
    assert here >= huge_page_size() >> 10
    other = map_shared(file, SIZE)
    populate(other, 0, SIZE)
    assert kilobytes(file, "ShmemPmdMapped") == 2 * here


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOMEM, errno.EAGAIN])
def test_where_the_kernel_gives_none_it_is_small_ones(file: int, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int]] = []

    def refuse_advice(_: memoryview, start: int, size: int, __: int) -> int:
        advised.append((start, size))
        return error

    monkeypatch.setattr(huge_pages, "huge_page_size", lambda: 2 << 20)
    monkeypatch.setattr(huge_pages, "_madvise", refuse_advice)
    memory = map_shared(file, SIZE)
    allocate(file, memory, 0, SIZE)
    is_all_there(file, memory)
    # For want of a page now, the next ones are tried.
    assert advised == [(0, 16 << 20), (16 << 20, 16 << 20)][: 2 if error == errno.EAGAIN else 1]


def test_where_they_are_dear_it_is_small_ones(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[int] = []
    monkeypatch.setattr(huge_pages, "huge_page_size", lambda: 2 << 20)
    monkeypatch.setattr(huge_pages, "_madvise", lambda _, start, *__: advised.append(start) or 0)
    monkeypatch.setattr(huge_pages.time, "thread_time", iter([1.0, 1.06, 2.0, 2.07]).__next__)
    memory = map_shared(file, 2 * SIZE)
    allocate(file, memory, 0, 2 * SIZE)
    assert os.fstat(file).st_blocks * 512 >= 2 * SIZE
    assert advised == [0, 16 << 20]


def test_a_kernel_without_them_is_not_asked(file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_SIZE_FILE", tmp_path / "none")
    assert huge_page_size() == 0
    memory = map_shared(file, SIZE)
    allocate(file, memory, 0, SIZE)
    is_all_there(file, memory)
    assert kilobytes(file, "ShmemPmdMapped") == 0


def test_it_is_unmapped_when_nothing_refers_to_it_and_not_before(file: int) -> None:
    memory = map_shared(file, SIZE)
    allocate(file, memory, 0, SIZE)
    part = memory[100:200]
    del memory
    gc.collect()
    part[0] = 1
    assert kilobytes(file, "Size") >= SIZE >> 10
    del part
    gc.collect()
    assert kilobytes(file, "Size") == 0


def test_what_cannot_be_mapped_is_an_error_that_leaves_nothing_mapped(tmp_path: Path) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=r"No such device|Permission denied"):
            map_shared(file, SIZE)
    finally:
        os.close(file)
    reserved = -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE + max(huge_page_size(), mmap.PAGESIZE)
    areas = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    assert reserved not in [int(end, 16) - int(start, 16) for start, end in areas]
