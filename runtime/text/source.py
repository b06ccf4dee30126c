"""Open files by name: a local path, or `s3://bucket/key`, which is read by ranges in bounded memory."""

import fnmatch
import io
import re
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.runtime.store import Entry, NoSuchKey, StoreError, Unavailable, open_objects

if TYPE_CHECKING:
    from everstep.runtime.store.s3 import S3Objects

S3_SCHEME = "s3://"
_SMALLEST, _LARGEST = 64 << 10, 4 << 20
"""Minimum and maximum bytes of one request. The size doubles from request to request while reading is sequential."""


class MissingObjectError(StoreError, FileNotFoundError):
    """There is no such object, or none any more."""


class FileVersion(NamedTuple):
    """Distinguishes versions of a file without reading it."""

    size: int
    modified: float
    """Unix time."""


def file_version(name: str) -> FileVersion:
    """Raises FileNotFoundError, StoreError."""
    if name.startswith(S3_SCHEME):
        entry = _find_object(name)
        if entry is None:
            raise MissingObjectError(f"{name}: no such object")
        return FileVersion(entry.size, entry.modified)
    stat = Path(name).stat()
    return FileVersion(stat.st_size, stat.st_mtime)


def open_bytes(name: str) -> io.RawIOBase:
    """Open the file for random access. Raises FileNotFoundError, StoreError."""
    if not name.startswith(S3_SCHEME):
        return io.FileIO(name)
    bucket, key = _split_uri(name)
    return _ObjectFile(name, _open_bucket(bucket), key, file_version(name).size)


def open_zip(file: Any) -> zipfile.ZipFile:
    """Raises BadZipFile; Unavailable, which zipfile alone would take for a damaged file."""
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile as error:
        if isinstance(error.__context__, Unavailable):
            raise error.__context__ from None
        raise


def list_objects(pattern: str, endings: tuple[str, ...]) -> list[str]:
    """The objects that `pattern` names: one object, the objects directly in a folder with these endings, or all that
    match a glob.

    `*`, `?` and `[...]` match within one part of a key; `**` matches across parts. Raises StoreError.
    """
    bucket, key = _split_uri(pattern)
    if not re.search(r"[*?[]", key):
        if not key.endswith("/") and key and _find_object(pattern):
            return [pattern]
        folder = key.rstrip("/") + "/" if key.rstrip("/") else ""
        names = [entry.key for entry in _open_bucket(bucket).list(folder)]
        right_there = [name for name in names if "/" not in name.removeprefix(folder)]
        return [f"{S3_SCHEME}{bucket}/{name}" for name in right_there if name.endswith(endings)]
    fixed_prefix = re.split(r"[*?[]", key)[0]
    fits = re.compile(_glob_regex(key)).fullmatch
    return [f"{S3_SCHEME}{bucket}/{entry.key}" for entry in _open_bucket(bucket).list(fixed_prefix) if fits(entry.key)]


def _glob_regex(pattern: str) -> str:
    """A regular expression for a glob pattern, as pathlib's `full_match` defines it."""
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern):
        if part in ("**/", "**"):
            parts.append("(?:.*/)?" if part == "**/" else ".*")
        elif part in ("*", "?"):
            parts.append("[^/]" + part.replace("?", ""))
        elif part.startswith("[") and part.endswith("]"):
            parts.append(fnmatch.translate(part).removeprefix("(?s:").rpartition(")")[0])
        else:
            parts.append(re.escape(part))
    return "".join(parts)


def _split_uri(name: str) -> tuple[str, str]:
    bucket, _, key = name.removeprefix(S3_SCHEME).partition("/")
    return bucket, key


def _find_object(name: str) -> Entry | None:
    """The object of that name. Of all objects with this prefix, it is the first in order."""
    bucket, key = _split_uri(name)
    first = next(_open_bucket(bucket).list(key), None)
    return first if first and first.key == key else None


@lru_cache
def _open_bucket(bucket: str) -> "S3Objects":
    """Cached, to reuse its connections."""
    return open_objects(f"{S3_SCHEME}{bucket}")


class _ObjectFile(io.RawIOBase):
    """An object of a store as a file. Buffers the bytes of one request, at most _LARGEST."""

    def __init__(self, name: str, objects: "S3Objects", key: str, size: int) -> None:
        super().__init__()
        self._name, self._objects, self._key, self._size = name, objects, key, size
        self._at = self._buffer_start = 0
        self._buffer = b""
        self._request_bytes = _SMALLEST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Fills the buffer unless the object ends first."""
        view = memoryview(buffer).cast("B")
        size_to_read, bytes_received = min(len(view), max(0, self._size - self._at)), 0
        while bytes_received < size_to_read:
            if not self._buffer_start <= self._at < self._buffer_start + len(self._buffer):
                self._fetch()
            offset = self._at - self._buffer_start
            count = min(size_to_read - bytes_received, len(self._buffer) - offset)
            view[bytes_received : bytes_received + count] = memoryview(self._buffer)[offset : offset + count]
            bytes_received, self._at = bytes_received + count, self._at + count
        return bytes_received

    def _fetch(self) -> None:
        """Fetch the next byte and some that follow it."""
        forwards = 0 <= self._at - (self._buffer_start + len(self._buffer)) < self._request_bytes
        self._request_bytes = min(_LARGEST, 2 * self._request_bytes) if forwards else _SMALLEST
        try:
            self._buffer = self._objects.get(self._key, self._at, self._request_bytes)
        except NoSuchKey:
            raise MissingObjectError(f"{self._name}: was removed while it was read") from None
        self._buffer_start = self._at
        if not self._buffer:
            raise StoreError(f"{self._name}: became shorter while it was read")
