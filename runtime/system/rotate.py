"""Logs that processes append to are kept short: what is old goes to `NAME.1`, what was there before goes away.

The file itself stays, so whoever has it open writes on in it; all of them must append (O_APPEND).
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
"""Bytes of a log after which it begins anew: with what was before there are at most twice as many, and what a writer
adds within EVERY_S."""
EVERY_S = 10.0


def rotate(path: Path, most: int = MOST_BYTES) -> bool:
    """Begin the log anew if it is longer than that; lines written in this very moment may be lost. On a full disk what
    was before is lost, too: the bound holds."""
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


def read_on(path: Path, at: int | None) -> tuple[bytes, bytes]:
    """(What was in the log before it began anew and nobody has read, what is in it now and nobody has read). `at`: so
    many bytes of it are known; None: none, nor what was before."""
    with path.open("rb") as file:
        begun_anew = at is None or os.fstat(file.fileno()).st_size < at
        before = b""
        if begun_anew:
            with suppress(FileNotFoundError), path.with_name(f"{path.name}.1").open("rb") as older:
                older.seek(at or 0)
                before = older.read()
        file.seek(0 if begun_anew else at or 0)
        return before, file.read()


def log_path_of(file: int) -> Path | None:
    """Path of the log that this descriptor appends to; None where it is a terminal, a pipe or written otherwise."""

    if not stat.S_ISREG(os.fstat(file).st_mode) or not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
        return None
    return Path(os.readlink(f"/proc/self/fd/{file}"))


class Rotation:
    """Looks after logs, as long as the event loop runs on which it began."""

    def __init__(self, paths: Iterable[Path] = (), most: int = MOST_BYTES, every_s: float = EVERY_S) -> None:
        self.paths = set(paths)
        self._most, self._every_s = most, every_s
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now, and again and again."""
        if self._next is not None:
            self._next.cancel()
        for path in self.paths:
            with suppress(OSError):
                rotate(path, self._most)
        self._next = asyncio.get_running_loop().call_later(self._every_s, self.start)
