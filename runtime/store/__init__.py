"""Objects under one prefix, shared by all parts of a run: a directory, or a prefix of an S3 bucket (MinIO).

All safety rests on `create`: of all writers of a key, exactly one gets `True`. Readers never see a half-written object.
Start with `protocol`.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.store.cache import Cache, download
from everstep.runtime.store.directory import DirectoryStore
from everstep.runtime.store.pace import Pace
from everstep.runtime.store.protocol import (
    Entry,
    InvalidKey,
    NoSuchKey,
    Store,
    StoreError,
    TooLarge,
    TooShort,
    Unavailable,
)

if TYPE_CHECKING:
    from everstep.runtime.store.s3 import S3Objects

__all__ = [
    "DirectoryStore",
    "Entry",
    "InvalidKey",
    "NoSuchKey",
    "Store",
    "StoreError",
    "TooLarge",
    "TooShort",
    "Unavailable",
    "absolute_uri",
    "download",
    "fetch_folder",
    "is_s3_uri",
    "local_copy_path",
    "open_objects",
    "open_store",
    "require_space",
    "require_writes",
]


def is_s3_uri(uri: str) -> bool:
    """Is this the address of a bucket, rather than of a directory?"""
    return uri.startswith("s3://")


def open_store(
    uri: str, *, read_only: bool = False, bytes_per_s: float = 0.0, environment: Mapping[str, str] = os.environ
) -> Store:
    """The store at `uri`: a directory, or `s3://bucket/prefix` as `environment` specifies (see `s3_settings`).

    Writes take at most `bytes_per_s` bytes/s in total (0: no limit). With `read_only`, a missing directory is not
    created and an S3 store is not probed. Raises StoreError, one line.
    """
    scheme, colon, _ = uri.partition("://")
    if is_s3_uri(uri):
        from everstep.runtime.store.s3 import S3Store  # Only here: minio takes a quarter of a second to import.
        from everstep.runtime.store.s3_settings import settings_of

        return S3Store(settings_of(uri, environment), Pace(bytes_per_s), read_only)
    if colon and scheme != "file":
        raise StoreError(f"{uri}: give a directory or s3://bucket/prefix, not {scheme}://")
    return DirectoryStore(uri.removeprefix("file://"), read_only, Pace(bytes_per_s))


def open_objects(bucket: str, environment: Mapping[str, str] = os.environ) -> "S3Objects":
    """All objects of a bucket (`s3://bucket`), whatever their names, for reading. Raises StoreError."""
    from everstep.runtime.store.s3 import S3Objects
    from everstep.runtime.store.s3_settings import settings_of

    return S3Objects(settings_of(bucket, environment))


def absolute_uri(uri: str) -> str:
    """The address of the same store, independent of the working directory."""
    return uri.rstrip("/") if is_s3_uri(uri) else os.path.abspath(uri.removeprefix("file://"))


def local_copy_path(uri: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The local folder for the finished data at `uri`: the directory itself, or the path of its copy."""
    if not is_s3_uri(uri):
        return Path(absolute_uri(uri))
    from everstep.runtime.store.s3_settings import settings_of

    settings = settings_of(uri, environment)
    return Cache(environment).path_of(settings.endpoint, settings.uri)


def fetch_folder(uri: str, manifest: str, environment: Mapping[str, str] = os.environ, without: str = "") -> Path:
    """`local_copy_path` with all data in it. Data in S3 is fetched, once for all processes of this machine.

    `without`: objects in S3 with this suffix are not fetched. Raises NoSuchKey if there is no finished data (no
    `manifest`), TooLarge if the data exceeds the cache, StoreError.
    """

    def open_source() -> Store:
        return open_store(uri, read_only=True, environment=environment)

    place = local_copy_path(f"{uri}-without{without}" if is_s3_uri(uri) and without else uri, environment)
    if is_s3_uri(uri):
        return Cache(environment).fetch(place, open_source, manifest, without)
    open_source().get(manifest, 0, 0)
    return place


def require_writes(store: Store) -> None:
    """Raises StoreError if the store refuses an object, or its removal. Leaves it as it was."""
    key = f"probes/{secrets.token_hex(8)}"
    store.create(key, b"")
    store.delete(key)


def require_space(store: Store, needed_bytes: int, what: str) -> None:
    """Raises StoreError if `needed_bytes` bytes for `what` do not fit. A store of unknown size passes."""
    if isinstance(store, DirectoryStore) and (free := store.free_bytes()) < needed_bytes:
        raise StoreError(
            f"{store.uri}: {what} needs {needed_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
            "free some space or choose another --store"
        )
