"""Keeps logs short that processes append to: old lines move to `NAME.1`, which replaces the one before.

The file itself stays, so its writers keep it open; all of them must append (O_APPEND).
"""

import asyncio
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 32 << 20
"""Bytes at which a log is rotated.

With the old lines there are at most twice as many, plus what is written within EVERY_S.
"""
EVERY_S = 10.0


def rotate(path: Path, most: int = MOST_BYTES) -> bool:
    """Rotate the log if it is longer than that. Lines written at this very moment may be lost.

    On a full disk the old lines are lost, too: the bound holds.
    """
    try:
        if path.stat().st_size <= most:
            return False
    except FileNotFoundError:
        return False
    with suppress(OSError):
        older = path.with_name(f"{path.name}.1")
        older.unlink(missing_ok=True)
        shutil.copyfile(path, older)
    os.truncate(path, 0)
    return True


def read_on(path: Path, at: int | None) -> tuple[bytes, bytes, int]:
    """(Unread bytes from before the last rotation, unread bytes since, where in the file the latter begin).

    `at`: how many bytes of the file have been read; None: there was no reader yet, so all from before is unread.
    """
    with path.open("rb") as file:
        begun_anew = at is None or os.fstat(file.fileno()).st_size < at
        begin = 0 if begun_anew else at or 0
        before = b""
        if begun_anew:
            with suppress(FileNotFoundError), path.with_name(f"{path.name}.1").open("rb") as older:
                older.seek(at or 0)
                before = older.read()
        file.seek(begin)
        return before, file.read(), begin


def log_path_of(file: int) -> Path | None:
    """Path of the log that this descriptor appends to; None for a terminal, a pipe, or another way of writing."""

    if not stat.S_ISREG(os.fstat(file).st_mode) or not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
        return None
    return Path(os.readlink(f"/proc/self/fd/{file}"))


class Rotation:
    """Rotates logs for as long as its event loop runs."""

    def __init__(self, paths: Iterable[Path] = (), most: int = MOST_BYTES, every_s: float = EVERY_S) -> None:
        self.paths = set(paths)
        self._most, self._every_s = most, every_s
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now, and then periodically."""
        if self._next is not None:
            self._next.cancel()
        for path in self.paths:
            with suppress(OSError):
                rotate(path, self._most)
        self._next = asyncio.get_running_loop().call_later(self._every_s, self.start)
