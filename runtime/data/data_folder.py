"""Finished data: a folder of the store whose manifest is created last, so it is either complete or absent.

A `Draft` is the folder while it is being written: hidden, beside its final place (with an S3 store: beside its path in
the local cache), and locked while its writer lives. The next writer removes drafts of dead writers. The name depends on
the content, so two writers of one folder write the same data.
"""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.runtime.store import NoSuchKey, absolute_uri, is_s3_uri, local_copy_path, open_store
from everstep.runtime.system.file_lock import hold_lock, open_locked

_DRAFT_PREFIX = "~draft-"


@dataclass(frozen=True)
class Draft:
    """A folder that is not yet visible; `commit` makes it visible."""

    folder: Path
    store: str
    key: str
    manifest: str

    def commit(self, meta: Mapping[str, Any]) -> None:
        """Make the folder's content durable, give it its final name, then create the manifest."""
        if is_s3_uri(self.store):
            self._upload(_encode_json(meta))
            return
        for path in _files(self.folder):
            _fsync(path)
        final = local_copy_path(data_uri(self.store, self.key))
        self._move_to(final)
        _fsync(final.parent)
        open_store(self.store).create(f"{self.key}/{self.manifest}", _encode_json(meta))

    def _upload(self, manifest: bytes) -> None:
        """Upload everything, the manifest last. Then the folder becomes the local copy."""
        store = open_store(self.store)
        for path in _files(self.folder):
            store.put(f"{self.key}/{path.relative_to(self.folder).as_posix()}", path)
        if store.create(f"{self.key}/{self.manifest}", manifest):
            (self.folder / self.manifest).write_bytes(manifest)
            self._move_to(local_copy_path(data_uri(self.store, self.key)))

    def _move_to(self, final: Path) -> None:
        try:
            self.folder.rename(final)
        except OSError as error:
            # Another writer was first with the same content. Invariant: a folder with a final name is complete.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def data_uri(store: str, key: str) -> str:
    """The address of the finished data `key`, independent of the working directory."""
    return f"{absolute_uri(store)}/{key}"


def find_manifest(store: str, key: str, manifest: str) -> dict[str, Any] | None:
    """The manifest of finished data; None if it does not exist."""
    try:
        return json.loads(open_store(store).get(f"{key}/{manifest}"))
    except NoSuchKey:
        return None


@contextmanager
def draft(store: str, key: str, manifest: str) -> Iterator[Draft]:
    """A new, empty folder for the data `key` (`corpora/<digest>`). It is removed at the end unless it was committed."""
    parent = local_copy_path(data_uri(store, key)).parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    # Random, because process ids collide between pods that share a folder.
    folder = parent / f"{_DRAFT_PREFIX}{Path(key).name}-{secrets.token_hex(4)}"
    lock = _create_locked(folder)
    try:
        yield Draft(folder, store, key, manifest)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create_locked(folder: Path) -> int:
    """Create a folder and lock it. Another writer may sweep it between the two steps; then try again."""
    while True:
        folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            return open_locked(folder)


def _sweep(parent: Path) -> None:
    """Remove the drafts of dead writers, which nobody holds a lock on."""
    for path in parent.glob(f"{_DRAFT_PREFIX}*"):
        with suppress(FileNotFoundError, BlockingIOError), hold_lock(path, wait_s=0):
            shutil.rmtree(path, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _encode_json(meta: Mapping[str, Any]) -> bytes:
    return (json.dumps(meta, indent=1, sort_keys=True) + "\n").encode()
