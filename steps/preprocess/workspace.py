"""The folder in which shards grow. It outlives a driver that was killed: the next one finds what is finished.

It is locked while its driver lives; a second driver of the same work gets a folder of its own meanwhile.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steps.entry import TRY_AGAIN, StepError


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A folder for shards, with those that are finished. It is kept when the work was only interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        folder = folder.with_name(f"{folder.name}-{os.getpid()}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for path in folder.iterdir():  # what a killed driver's tasks did not finish
        if not (folder / f"{path.name.split('.')[0]}.done").exists():
            path.unlink()
    try:
        yield folder
    except (OSError, StepError) as error:
        if not isinstance(error, StepError) or error.code != TRY_AGAIN:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if folder.is_dir() and not any(folder.glob("*.done")):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
