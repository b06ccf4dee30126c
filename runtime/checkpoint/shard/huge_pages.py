"""Shared memory in huge pages, if the kernel has them: mapping a GiB of 4 KiB pages takes longer than copying it.

tmpfs gives 4 KiB pages unless its administrator chose otherwise. MADV_COLLAPSE turns them into huge pages whatever the
setting is. It also does so for a hole with a single page in it, which takes a third of the time of allocating the small
pages. A huge page is one entry in the page tables of each process.

Source: madvise(2), Linux 6.1. An earlier kernel, or one without a free huge page, keeps the small pages.
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
"""Bytes collapsed in one call: two milliseconds."""
_MAX_S_PER_BYTE = 4.0 / (1 << 30)
"""Processor seconds a byte above which small pages are used; the kernel is moving other pages then. Below, huge pages
pay: if a virtual machine's host must supply the memory first, they take 2.7 s a GiB, small ones 1.7."""
_MADV_COLLAPSE, _MADV_POPULATE_READ = 25, 22
"""MADV_POPULATE_READ maps 16 small pages a fault, and allocated shared memory is then writable, too.
MADV_POPULATE_WRITE maps one page a fault."""
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def huge_page_size() -> int:
    """Bytes; 0 if the kernel has no huge pages."""
    try:
        return int(_SIZE_FILE.read_text())
    except (OSError, ValueError):
        return 0


def map_shared(file: int, size: int) -> memoryview:
    """The first `size` bytes of an open file as a shared, writable mapping, (size,) uint8. Raises OSError.

    The mapping starts at an address aligned to huge pages, which mmap.mmap does not ensure. It is unmapped when nothing
    refers to it any more.
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
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False  # At exit other threads may still use it.
    return memoryview(memory).cast("B")


def allocate(file: int, memory: memoryview, start: int, end: int) -> None:
    """Allocate these bytes of a new file that is mapped as `memory`. Releases the interpreter lock. Raises OSError if
    there is no room."""
    page = huge_page_size()
    if page:
        _make_huge(file, memory, page, range(-(-start // page) * page, end // page * page, max(_BATCH_BYTES, page)))
    os.posix_fallocate(file, start, end - start)


def _make_huge(file: int, memory: memoryview, page: int, parts: range) -> None:
    """Collapse pages until the kernel refuses or the cost exceeds `_MAX_S_PER_BYTE`. `parts` are the first bytes of
    each call's range."""
    for start in parts:
        end, began = min(start + parts.step, parts.stop), time.thread_time()
        for hole in range(start, end, page):
            os.posix_fallocate(file, hole, _PAGE)
        error_number = _madvise(memory, start, end - start, _MADV_COLLAPSE)
        if error_number not in (0, errno.EAGAIN) or time.thread_time() - began > (end - start) * _MAX_S_PER_BYTE:
            break


def populate(memory: memoryview, start: int, size: int) -> None:
    """Map the pages of these allocated bytes now. Best effort. `start` is the first byte of a page."""
    _madvise(memory, start, size, _MADV_POPULATE_READ)


def _madvise(memory: memoryview, start: int, size: int, advice: int) -> int:
    """The error number; 0 on success."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.get_errno() if _libc.madvise(address + start, size, advice) else 0


def _mmap(address: int, size: int, protection: int, flags: int, file: int) -> int:
    mapping = _libc.mmap(address or None, size, protection, flags, file, 0)
    if mapping == ctypes.c_void_p(-1).value:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))
    return int(mapping)
