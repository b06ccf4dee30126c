"""Large reads and writes that bypass the page cache (O_DIRECT).

Filling the page cache costs the processor several times what the disk takes (here 2.7 s of 3.0 s for a GiB, against
0.04 s of 0.3 s). Its pages are taken from training and count as a pod's memory. A file system without O_DIRECT is used
as usual.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BLOCK = 4096
"""Memory address, file offset and length must be multiples of the disk's block size (open(2)); no disk has larger
blocks."""
DIRECT_FROM_BYTES = 1 << 20
"""Smaller transfers are likely to be read again soon, or are not worth another descriptor."""
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT)


@contextmanager
def open_direct(file: int, mode: int, size: int) -> Iterator[int]:
    """A descriptor of the same file, opened by `mode`, to move `size` bytes past the page cache. Yields `file` itself
    if the file system lacks O_DIRECT or the size is small."""
    if size < DIRECT_FROM_BYTES:
        yield file
        return
    try:
        direct = os.open(f"/proc/self/fd/{file}", mode | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        yield file
        return
    try:
        yield direct
    finally:
        os.close(direct)


def write_at(file: int, direct: int, data: memoryview, at: int) -> None:
    """Write all of `data` at byte `at`. Raises OSError."""
    if (bytes_written := _transfer(file, direct, data, at, os.pwrite)) < len(data):
        raise OSError(errno.EIO, f"{bytes_written} of {len(data)} bytes were taken")


def read_at(file: int, direct: int, buffer: memoryview, at: int) -> int:
    """Fill the buffer from byte `at` on. Returns the number of bytes, which is smaller only at the end of the file."""
    return _transfer(file, direct, buffer, at, lambda which, view, start: os.preadv(which, [view], start))


def _transfer(file: int, direct: int, data: memoryview, at: int, move: Callable[[int, memoryview, int], int]) -> int:
    """Move whole blocks by `direct` if they are aligned, and the rest by `file`."""
    bytes_written, blocks = 0, len(data) // BLOCK * BLOCK if _is_aligned(data, at) else 0
    while bytes_written < len(data):
        past = bytes_written < blocks and bytes_written % BLOCK == 0
        with data[bytes_written : blocks if past else len(data)] as rest:
            try:
                count = move(direct if past else file, rest, at + bytes_written)
            except OSError as error:
                if not past or error.errno not in _UNSUPPORTED:
                    raise
                blocks = 0
                continue
        if not count:
            break
        bytes_written += count
    return bytes_written


def _is_aligned(data: memoryview, at: int) -> bool:
    if data.readonly or len(data) < BLOCK or at % BLOCK:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % BLOCK == 0
