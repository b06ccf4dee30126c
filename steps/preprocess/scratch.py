"""The folder of Spark's files on this machine; removed by its step or, if that was killed, by the next one."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from everstep.runtime.system.file_lock import hold_lock, lock

_PREFIX = "everstep-spark-"
_FRESH_S = 60.0
"""Younger folders may not be locked yet."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, locked for as long as its process lives."""
    _remove_abandoned()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with hold_lock(path):
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # It is gone, locked, or another user's.
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                facts = os.fstat(folder)
                if facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > _FRESH_S:
                    lock(folder, wait_s=0)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)
