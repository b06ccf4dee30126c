"""Objects under one prefix: what every part of a run knows. Today a directory; S3 comes behind the same Protocol.

All safety rests on `create`: of any number of writers of one key exactly one is told `True`. Readers never see a
half-written object. Imports nothing else of Everstep.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from runtime.store.directory import DirectoryStore

__all__ = ["DirectoryStore", "Entry", "NoSuchKey", "Store", "StoreError", "open_store"]


class StoreError(OSError):
    """The store cannot do what was asked; one line that says what and how to mend it."""


class NoSuchKey(KeyError):
    """No object has that key."""


class Entry(NamedTuple):
    """An object as `list` sees it."""

    key: str
    size: int
    modified: float
    """Unix time."""


class Store(Protocol):
    """Keys are relative, '/'-separated, of letters, digits and `._-`; checked on every call (ValueError)."""

    uri: str
    """What `open_store` takes to open it again."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The object's bytes, or `length` of them from `start`. Raises NoSuchKey."""
        ...

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` from byte `start` on. Raises NoSuchKey, StoreError when the object is too short."""
        ...

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        """Write the object whole, replacing an older one."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write the object if the key is free: True for exactly one of all writers. Atomic and durable."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """The objects whose key starts with `prefix`, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; no error when there is none."""
        ...


def open_store(uri: str) -> Store:
    """The store at `uri`: a directory (made when missing). Raises StoreError for a scheme that is not built."""
    scheme, colon, _ = uri.partition("://")
    if colon and scheme != "file":
        raise StoreError(f"--store {uri}: only directories are supported yet, not {scheme}://")
    return DirectoryStore(uri.removeprefix("file://"))
