"""What a store promises, whatever it is made of. `tests/store` holds every implementation to it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

_KEY = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class StoreError(OSError):
    """The store cannot do what was asked; one line that says what and how to mend it."""


class TooLarge(StoreError):  # noqa: N818 - as it is said
    """It does not fit into the space that it may take on this machine."""


class TooShort(StoreError):  # noqa: N818
    """The object ends before the bytes that were asked for."""


class NoSuchKey(KeyError):  # noqa: N818 (a name that reads well in `except`)
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
        """The object's bytes, or `length` of them (fewer at its end) from `start`. Raises NoSuchKey."""
        ...

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` from byte `start` on. Raises NoSuchKey, TooShort."""
        ...

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        """Write the object whole, replacing an older one. Durable when it returns; a memoryview is not copied."""
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

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        """Remove what killed writers left below `prefix`, which no other call shows; tells each before it goes. With
        `dry_run` nothing goes. What a living writer may own stays."""
        ...


def check_key(key: str) -> None:
    """Raises ValueError for a key that no store takes (names become paths)."""
    if not _KEY.fullmatch(key) or any(part in (".", "..") for part in key.split("/")):
        raise ValueError(f"not a key: {key!r}; parts of letters, digits and ._- joined by /")


def check_prefix(prefix: str) -> None:
    """Raises ValueError for a prefix that no key can start with; the empty one is every key's."""
    if prefix:
        check_key(prefix.removesuffix("/"))
