"""Where shards grow. It outlives a killed driver: the next driver finds the finished shards.

`workspace` is a folder of this machine, locked while its driver lives; a second driver of the same work gets a folder
of its own meanwhile. `shelf` is where the tasks put their shards: that folder or, if they run on a cluster and the
output is in an S3 store, a prefix of that store. Tasks use `scratch_folder` and `ShardProgress`.
"""

import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import Store, Unavailable, is_s3_uri, open_store
from everstep.runtime.system.file_lock import open_locked
from everstep.steps.entry import StepError, disk_error_code

COUNTS = struct.Struct("<QQQQ")
"""Documents, tokens, bytes of text and stored bytes read so far: the content of a task's `.progress`."""
_TELL_S, _TELL_STORE_S = 0.25, 5.0


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A folder for shards, including finished ones. It is kept if the work was only interrupted."""
    folder, lock = _lock_folder(folder)
    for path in folder.iterdir():  # unfinished files of a killed driver's tasks, which may outlive it by a moment
        if not (folder / f"{path.name.split('.')[0]}.done").exists():
            path.unlink(missing_ok=True)
    try:
        yield folder
    except (OSError, StepError) as error:
        if not _is_interruption(error):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if folder.is_dir() and not any(folder.glob("*.done")):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock_folder(folder: Path) -> tuple[Path, int]:
    """The folder and its lock; a new folder beside it while another driver holds the lock."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return folder, open_locked(folder, wait_s=0)
        except FileNotFoundError:
            continue  # its last driver has ended in between
        except BlockingIOError:
            folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))


@contextmanager
def shelf(folder: Path, elsewhere: str) -> Iterator[str]:
    """The URI under which tasks put their shards: `folder`, or `elsewhere` (s3://) if that is not empty.

    `elsewhere` is emptied at the end, unless the work was only interrupted. So the block must last until the output is
    complete.
    """
    if not elsewhere:
        yield str(folder)
        return
    try:
        yield elsewhere
    except (OSError, StepError) as error:
        if not _is_interruption(error):
            empty_shelf(elsewhere)
        raise
    else:
        empty_shelf(elsewhere)


def _is_interruption(error: OSError | StepError) -> bool:
    code = error.code if isinstance(error, StepError) else disk_error_code(error)
    return code == ExitCode.TRY_AGAIN


def made_by_another(error: OSError | StepError, find: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """What `find` finds of another run of the same work, which has finished first and removed the shards of this one.

    Raises `error` if that is not why this run was interrupted.
    """
    found = find() if _is_interruption(error) else None
    if found is None:
        raise error
    print("another run of the same work was first", file=sys.stderr)
    return found


def empty_shelf(elsewhere: str) -> None:
    """Remove all shards there; nothing to do if that is empty. Another run of the same work that uses them has to try
    again."""
    if not elsewhere:
        return
    store = open_store(elsewhere, read_only=True)  # Without a probe: there may never have been shards.
    for entry in list(store.list("")):
        store.delete(entry.key)


@lru_cache
def open_shelf(uri: str) -> Store:
    """The store at that URI; its connections are kept for the next task of this process."""
    return open_store(uri)


@contextmanager
def scratch_folder(uri: str) -> Iterator[Path]:
    """A folder on the task's machine for incomplete files: the shelf itself, if that is a folder."""
    if not is_s3_uri(uri):
        yield Path(uri)
        return
    with tempfile.TemporaryDirectory(prefix="everstep-shard-") as name:
        yield Path(name)


class ShardProgress:
    """Writes how far a task is, now and then. All attempts of a shard share one file."""

    def __init__(self, uri: str, name: str) -> None:
        self._uri, self._name = uri, name
        self._every_s = _TELL_STORE_S if is_s3_uri(uri) else _TELL_S
        self._next = time.monotonic() + self._every_s

    def is_due(self) -> bool:
        """Is it time to write?"""
        return time.monotonic() >= self._next

    def report(self, documents: int, tokens: int, size: int, stored_bytes: int) -> None:
        """Write documents, tokens, bytes of text, and bytes of the input."""
        self._next = time.monotonic() + self._every_s
        counts = COUNTS.pack(documents, tokens, size, stored_bytes)
        if is_s3_uri(self._uri):
            with suppress(Unavailable):  # The task goes on; the next report tells more.
                open_shelf(self._uri).put(self._name, counts)
            return
        file = os.open(Path(self._uri, self._name), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, counts, 0)
        finally:
            os.close(file)
