"""The contract of a store. `tests/store` tests every implementation against it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

_KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class StoreError(OSError):
    """The store cannot do what was requested. The text is one line with the cause and the remedy."""


class Unavailable(StoreError):  # noqa: N818 (a name that reads well in `except`)
    """The store does not answer at the moment, or has too much to do: another try may help."""


class TooLarge(StoreError):  # noqa: N818 (a name that reads well in `except`)
    """The data exceeds the space that it may take on this machine."""


class TooShort(StoreError):  # noqa: N818
    """The object ends before the requested bytes."""


class InvalidKey(StoreError, ValueError):  # noqa: N818
    """No object can have that key."""


class NoSuchKey(KeyError):  # noqa: N818 (a name that reads well in `except`)
    """No object has that key."""


class Entry(NamedTuple):
    """An object as `list` returns it."""

    key: str
    size: int
    modified: float
    """Unix time."""


class Store(Protocol):
    """Keys are relative, '/'-separated, of letters, digits and `._-`. Every call checks them (InvalidKey)."""

    uri: str
    """Reopens the store through `open_store`."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The object's bytes, or `length` bytes from `start` (fewer at the end). Raises NoSuchKey."""
        ...

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` from byte `start` on. Raises NoSuchKey, TooShort."""
        ...

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        """Write the whole object, replacing an older one. It is durable on return. A memoryview is not copied."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write the object if the key is free. Returns True for exactly one of all writers. Atomic and durable."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """The objects whose key starts with `prefix`, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object, if it exists."""
        ...

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        """Remove what killed writers left below `prefix`; no other call shows it. Yields each before its removal. With
        `dry_run` nothing is removed. Whatever a living writer may own stays."""
        ...


def check_key(key: str) -> None:
    """Raises InvalidKey. The check is strict because keys become paths."""
    if not _KEY.fullmatch(key) or any(part in (".", "..") for part in key.split("/")):
        raise InvalidKey(f"not a key: {key!r}; parts of letters, digits and ._- joined by /")


def check_prefix(prefix: str) -> None:
    """Raises InvalidKey for a prefix that no key can start with. The empty prefix is valid."""
    if prefix:
        check_key(prefix.removesuffix("/"))
