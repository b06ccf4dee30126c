"""Objects under one prefix: what every part of a run knows. A directory, or a prefix of an S3 bucket (MinIO).

All safety rests on `create`: of any number of writers of one key exactly one is told `True`. Readers never see a
half-written object. Imports nothing else of Everstep. The story begins in `protocol`.
"""

import os
from collections.abc import Mapping

from runtime.store.directory import DirectoryStore
from runtime.store.pace import Pace
from runtime.store.protocol import Entry, NoSuchKey, Store, StoreError

__all__ = ["DirectoryStore", "Entry", "NoSuchKey", "Store", "StoreError", "absolute", "open_store", "require_space"]

S3 = "s3://"


def open_store(uri: str, *, read_only: bool = False, environment: Mapping[str, str] = os.environ) -> Store:
    """The store at `uri`: a directory, or `s3://bucket/prefix` as `environment` tells (see `s3_settings`).

    `read_only` neither makes a missing directory nor proves anything of the S3 store. Raises StoreError, one line.
    """
    scheme, colon, _ = uri.partition("://")
    if uri.startswith(S3):
        from runtime.store.s3 import S3Store  # Only here: minio takes a quarter of a second to import.
        from runtime.store.s3_settings import settings_of

        return S3Store(settings_of(uri, environment), Pace(), read_only)
    if colon and scheme != "file":
        raise StoreError(f"--store {uri}: give a directory or s3://bucket/prefix, not {scheme}://")
    return DirectoryStore(uri.removeprefix("file://"), read_only)


def absolute(uri: str) -> str:
    """The same store, whatever directory a process works in."""
    return uri.rstrip("/") if uri.startswith(S3) else os.path.abspath(uri.removeprefix("file://"))


def require_space(store: Store, needed: int, what: str) -> None:
    """Raises StoreError when `needed` bytes for `what` cannot fit; a store that cannot tell passes."""
    if isinstance(store, DirectoryStore) and (free := store.free_bytes()) < needed:
        raise StoreError(
            f"{store.uri}: {what} needs {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
            "free some space or choose another --store"
        )
