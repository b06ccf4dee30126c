"""Files of this machine that are there whole or not at all, whoever else writes or reads them."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends well, and is gone when it does not.

    `durable`: it is on the disk before it has its name. Writers in several processes or threads do not disturb each
    other; the last one stays.
    """
    fresh = _temporary_path(path)
    try:
        with fresh.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def replace(path: Path, data: bytes | str) -> None:
    """Make `data` (text as UTF-8) the content of `path`."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def create(path: Path, data: str, mode: int = 0o600) -> bool:
    """Make the file, unless it is there: False. Of several that try at once one succeeds."""
    fresh = _temporary_path(path)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(data)
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
