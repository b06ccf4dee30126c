"""Objects under one prefix: what every part of a run knows. A directory, or a prefix of an S3 bucket (MinIO).

All safety rests on `create`: of any number of writers of one key exactly one is told `True`. Readers never see a
half-written object. The story begins in `protocol`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.store.cache import Cache, download
from everstep.runtime.store.directory import DirectoryStore
from everstep.runtime.store.pace import Pace
from everstep.runtime.store.protocol import Entry, NoSuchKey, Store, StoreError, TooLarge, TooShort

if TYPE_CHECKING:
    from everstep.runtime.store.s3 import S3Objects

__all__ = [
    "DirectoryStore",
    "Entry",
    "NoSuchKey",
    "Store",
    "StoreError",
    "TooLarge",
    "TooShort",
    "absolute_uri",
    "download",
    "fetch_folder",
    "is_s3_uri",
    "local_copy_path",
    "open_objects",
    "open_store",
    "require_space",
]


def is_s3_uri(uri: str) -> bool:
    """Is that an address in a bucket, rather than a directory's?"""
    return uri.startswith("s3://")


def open_store(
    uri: str, *, read_only: bool = False, bytes_per_s: float = 0.0, environment: Mapping[str, str] = os.environ
) -> Store:
    """The store at `uri`: a directory, or `s3://bucket/prefix` as `environment` tells (see `s3_settings`).

    All that is written takes at most `bytes_per_s` (0: no limit). `read_only` neither makes a missing directory nor
    proves anything of the S3 store. Raises StoreError, one line.
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
    """All that is in a bucket (`s3://bucket`), under whatever names others gave it: to be read. Raises StoreError."""
    from everstep.runtime.store.s3 import S3Objects
    from everstep.runtime.store.s3_settings import settings_of

    return S3Objects(settings_of(bucket, environment))


def absolute_uri(uri: str) -> str:
    """The same store, whatever directory a process works in."""
    return uri.rstrip("/") if is_s3_uri(uri) else os.path.abspath(uri.removeprefix("file://"))


def local_copy_path(uri: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of this machine that holds the finished data at `uri`: the directory itself, or its copy's place."""
    if not is_s3_uri(uri):
        return Path(absolute_uri(uri))
    from everstep.runtime.store.s3_settings import settings_of

    settings = settings_of(uri, environment)
    return Cache(environment).path_of(settings.endpoint, settings.uri)


def fetch_folder(uri: str, manifest: str, environment: Mapping[str, str] = os.environ, without: str = "") -> Path:
    """That folder with everything in it: what is in S3 is fetched, once for all processes of this machine.

    `without`: objects of S3 whose key ends so are left there. Raises NoSuchKey when no finished data is there (no
    `manifest`), TooLarge when it is more than may be kept here, StoreError.
    """

    def opened() -> Store:
        return open_store(uri, read_only=True, environment=environment)

    place = local_copy_path(f"{uri}-without{without}" if is_s3_uri(uri) and without else uri, environment)
    if is_s3_uri(uri):
        return Cache(environment).fetch(place, opened, manifest, without)
    opened().get(manifest, 0, 0)
    return place


def require_space(store: Store, needed: int, what: str) -> None:
    """Raises StoreError when `needed` bytes for `what` cannot fit; a store that cannot tell passes."""
    if isinstance(store, DirectoryStore) and (free := store.free_bytes()) < needed:
        raise StoreError(
            f"{store.uri}: {what} needs {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
            "free some space or choose another --store"
        )
