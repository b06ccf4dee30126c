"""The file system of a directory store has no room left: a file without a name holds all of it.

The kernel frees that file with the process that holds it, so the disk is never full for ever.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LARGEST_STEP, _SMALLEST_STEP = 1 << 34, 1 << 12


def refusal(folder: Path) -> str:
    """Why that folder's file system cannot be filled here, in one line; empty if it can."""
    device = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/")).stat().st_dev
    for shared in ("/", tempfile.gettempdir()):
        if os.stat(shared).st_dev == device:
            return (
                f"{folder} is on the file system of {shared}, and to fill that would harm more than this run: put the "
                "store on one of its own (--store)"
            )
    return ""


class Filler:
    """Takes what is free."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.bytes_taken = 0

    def fill(self) -> None:
        """Take what has become free since the last time. Raises OSError."""
        step = _LARGEST_STEP
        while step >= _SMALLEST_STEP:
            try:
                os.posix_fallocate(self._descriptor, self.bytes_taken, step)
                self.bytes_taken += step
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EFBIG):
                    raise
                step //= 2


@contextmanager
def filled(folder: Path) -> Iterator[Filler]:
    """The file system of `folder` is full until the end. Raises OSError."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    try:
        filler = Filler(descriptor)
        filler.fill()
        yield filler
    finally:
        os.close(descriptor)


def has_room(folder: Path) -> bool:
    """Can a page be written there? Raises OSError."""
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    try:
        os.pwrite(descriptor, b"\1" * _SMALLEST_STEP, 0)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    finally:
        os.close(descriptor)
    return True
