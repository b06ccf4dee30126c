"""Objects under one prefix: what every part of a run knows. Today a directory; S3 comes behind the same Protocol.

All safety rests on `create`: of any number of writers of one key exactly one is told `True`. Readers never see a
half-written object. Imports nothing else of Everstep. The story begins in `protocol`.
"""

from runtime.store.directory import DirectoryStore
from runtime.store.protocol import Entry, NoSuchKey, Store, StoreError

__all__ = ["DirectoryStore", "Entry", "NoSuchKey", "Store", "StoreError", "open_store", "require_space"]


def open_store(uri: str) -> Store:
    """The store at `uri`: a directory (made when missing). Raises StoreError for a scheme that is not built."""
    scheme, colon, _ = uri.partition("://")
    if colon and scheme != "file":
        raise StoreError(f"--store {uri}: only directories are supported yet, not {scheme}://")
    return DirectoryStore(uri.removeprefix("file://"))


def require_space(store: Store, needed: int, what: str) -> None:
    """Raises StoreError when `needed` bytes for `what` cannot fit; a store that cannot tell passes."""
    if isinstance(store, DirectoryStore) and (free := store.free_bytes()) < needed:
        raise StoreError(
            f"{store.uri}: {what} needs {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; "
            "free some space or choose another --store"
        )
