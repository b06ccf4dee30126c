"""Files of this machine that are complete or absent, whoever else writes or reads them."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file that replaces `path` if the block succeeds, and is removed if it fails.

    `durable`: its content is on disk before it gets its name. Concurrent writers do not disturb each other; the last
    one wins.
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


def create(path: Path, data: bytes | str, mode: int = 0o600) -> bool:
    """Create the file unless it exists (False). If several try at once, one succeeds. Needs hard links."""
    fresh = _temporary_path(path)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
