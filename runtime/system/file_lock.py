"""Locks on files and folders (flock(2)), between processes and between the threads of one.

A lock ends when its descriptor and all copies of it are closed, at the latest with the processes that hold them. A
forked child has such a copy; a program that is executed has none. All other opens of the file are other holders.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_S = 0.01


def lock(descriptor: int, *, is_shared: bool = False, wait_s: float | None = None) -> None:
    """Lock the open file or folder: alone, or with others that share it. Waits for `wait_s`; None: as long as it takes.

    Raises BlockingIOError if others hold it; OSError where the file system has no locks.
    """
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    if wait_s is None:
        fcntl.flock(descriptor, kind)
        return
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(_POLL_S)


def open_locked(
    path: Path, flags: int = os.O_RDONLY, *, is_shared: bool = False, wait_s: float | None = None, mode: int = 0o666
) -> int:
    """Open a file or folder and lock it as `lock` does; returns the descriptor. To close it ends the lock.

    Invariant: what is locked has the name `path`; what a holder removed before it closed is not taken for it. Raises
    what `lock` raises, and FileNotFoundError.
    """
    while True:
        descriptor = os.open(path, flags, mode)
        try:
            lock(descriptor, is_shared=is_shared, wait_s=wait_s)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def hold_lock(
    path: Path, flags: int = os.O_RDONLY, *, is_shared: bool = False, wait_s: float | None = None, mode: int = 0o666
) -> Iterator[int]:
    """Hold the lock of `open_locked` for a block. Gives the descriptor."""
    descriptor = open_locked(path, flags, is_shared=is_shared, wait_s=wait_s, mode=mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
