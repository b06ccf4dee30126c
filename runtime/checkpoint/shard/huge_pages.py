"""Shared memory as huge pages, where the kernel has such: mapping a GiB of 4 KiB pages takes longer than copying it.

tmpfs gives 4 KiB pages unless its administrator asked for others. MADV_COLLAPSE makes huge ones of them, whatever is
set, and of a hole with one page in it just as well: that takes a third of what allocating the small ones does. A
mapping is one entry for each huge page then, in this process and in every other. Source: madvise(2), Linux 6.1; an
earlier kernel, and one without a huge page left, gives what it gave before.
"""

import ctypes
import errno
import mmap
import os
import time
import weakref
from pathlib import Path

_PAGE = mmap.PAGESIZE
_SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_BATCH_BYTES = 16 << 20
"""Bytes of one call that makes huge pages: two milliseconds."""
_MAX_S_PER_BYTE = 4.0 / (1 << 30)
"""Seconds of a processor for a byte, with which small pages are taken: the kernel moves others to make room. Less is
worth it: where a virtual machine's host has to bring the memory first, huge pages take 2.7 s a GiB, small ones 1.7."""
_MADV_COLLAPSE, _MADV_POPULATE_READ = 25, 22
"""MADV_POPULATE_READ maps 16 small pages a fault, and shared memory that is allocated can be written then;
MADV_POPULATE_WRITE maps one."""
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def huge_page_size() -> int:
    """Bytes; 0 where the kernel has none."""
    try:
        return int(_SIZE_FILE.read_text())
    except (OSError, ValueError):
        return 0


def map_shared(file: int, size: int) -> memoryview:
    """The first `size` bytes of an open file, writable, shared with whoever maps it, (size,) uint8; unmapped when
    nothing refers to them any more. Raises OSError.

    They begin at an address that a huge page may have, which mmap.mmap does not see to.
    """
    align = max(huge_page_size(), _PAGE)
    reserved = _mmap(0, size + align, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
    address = -(-reserved // align) * align
    try:
        _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, file)
    except OSError:
        _libc.munmap(reserved, size + align)
        raise
    end = -(-(address + size) // _PAGE) * _PAGE
    _libc.munmap(reserved, address - reserved)
    _libc.munmap(end, reserved + align + size - end)
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False  # Other threads may be at work with it still.
    return memoryview(memory).cast("B")


def allocate(file: int, memory: memoryview, start: int, end: int) -> None:
    """Give those bytes of a new file, which is mapped there, their memory. Other threads run meanwhile. Raises OSError:
    no room."""
    page = huge_page_size()
    if page:
        _make_huge(file, memory, page, range(-(-start // page) * page, end // page * page, max(_BATCH_BYTES, page)))
    os.posix_fallocate(file, start, end - start)


def _make_huge(file: int, memory: memoryview, page: int, parts: range) -> None:
    """As many as there are at that price. `parts` are the first bytes of what is done in one call."""
    for start in parts:
        end, began = min(start + parts.step, parts.stop), time.thread_time()
        for hole in range(start, end, page):
            os.posix_fallocate(file, hole, _PAGE)
        failed = _madvise(memory, start, end - start, _MADV_COLLAPSE)
        if failed not in (0, errno.EAGAIN) or time.thread_time() - began > (end - start) * _MAX_S_PER_BYTE:
            break


def populate(memory: memoryview, start: int, size: int) -> None:
    """Map the pages of these bytes, of memory that is allocated, now. Best effort. `start` is a page's first byte."""
    _madvise(memory, start, size, _MADV_POPULATE_READ)


def _madvise(memory: memoryview, start: int, size: int, advice: int) -> int:
    """The error's number; 0: done."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.get_errno() if _libc.madvise(address + start, size, advice) else 0


def _mmap(address: int, size: int, protection: int, flags: int, file: int) -> int:
    got = _libc.mmap(address or None, size, protection, flags, file, 0)
    if got == ctypes.c_void_p(-1).value:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return int(got)
