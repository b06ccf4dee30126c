"""Finished data of an S3 store as a folder of this machine, fetched once and shared by every process here.

Data under one address never changes, so a copy that is whole stays right. Copies lie in EVERSTEP_CACHE (or else the
user's cache folder, or the temporary one where the user has none, as in a pod) and together take at most
EVERSTEP_CACHE_BYTES: what was not used for longest makes room; what a living process uses stays.
"""

import fcntl
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from everstep.runtime.store.protocol import Store, StoreError, TooLarge
from everstep.runtime.system.own_folder import own_folder

FOLDER, BYTES = "EVERSTEP_CACHE", "EVERSTEP_CACHE_BYTES"
DEFAULT_BYTES = 50_000_000_000
_LOCK = "lock"


class Cache:
    """The copies that `environment` places. Raises StoreError for a size that is no number, and where the folder of a
    user who has none is another's: he could put other data there."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.root = Path(environment[FOLDER]).absolute() if environment.get(FOLDER) else _default_folder(environment)
        told = environment.get(BYTES) or str(DEFAULT_BYTES)
        if not told.isdigit():
            raise StoreError(f"{BYTES}={told}: give a whole number of bytes")
        self.limit = int(told)

    def path_of(self, endpoint: str, uri: str) -> Path:
        """Where the copy of `uri` is, or will be; its last part is the address's."""
        entry = hashlib.sha256(f"{endpoint} {uri}".encode()).hexdigest()[:16]
        return self.root / entry / uri.rpartition("/")[2]

    def fetch(self, place: Path, opened: Callable[[], Store], manifest: str, without: str = "") -> Path:
        """`place`, holding all of the store at the data's own address, which is opened only when it is not there yet.
        In use until this process ends. Objects whose key ends in `without` are left out, if that is not empty.

        Raises NoSuchKey without `manifest`, which comes last; StoreError when it cannot be read or kept, TooLarge when
        it is larger than all that may be kept.
        """
        with _explain_errors(self.root):
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(place.parent / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if not place.is_dir():
                    with _copy_lock(place.parent):
                        if not place.is_dir():
                            self._make_copy(place, opened(), manifest, without)
                os.utime(lock)
            except BaseException:
                os.close(lock)
                raise
            return place  # The lock stays with the process: it is how others know that the copy is in use.

    def make_room(self, size: int, what: str) -> None:
        """Remove unused copies, the longest unused first, until `size` more bytes fit. Raises StoreError."""
        if size > self.limit:
            raise TooLarge(f"{what} has {size / 1e6:.0f} MB, {BYTES} allows {self.limit / 1e6:.0f} MB; raise it")
        held = {entry: _folder_bytes(entry) for entry in sorted(self.root.glob("*/"), key=_last_used_time)}
        for entry, taken in held.items():
            if sum(held.values()) + size <= self.limit:
                return
            if taken and _remove_unused(entry):
                held[entry] = 0
        if sum(held.values()) + size > self.limit:
            raise StoreError(
                f"{what} has {size / 1e6:.0f} MB; of the {self.limit / 1e6:.0f} MB in {self.root} too many are in use; "
                f"raise {BYTES}"
            )

    def _make_copy(self, place: Path, store: Store, manifest: str, without: str) -> None:
        last = store.get(manifest)
        wanted = (entry for entry in store.list("") if not without or not entry.key.endswith(without))
        found = [entry for entry in wanted if entry.key != manifest]
        self.make_room(sum(entry.size for entry in found), store.uri)
        fresh = place.with_name(f"~{place.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir()
            for entry in found:
                path = fresh / entry.key
                path.parent.mkdir(parents=True, exist_ok=True)
                download(store, entry.key, entry.size, path)
            (fresh / manifest).write_bytes(last)
            fresh.rename(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _default_folder(environment: Mapping[str, str]) -> Path:
    home = Path(environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")).absolute()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if os.access(there, os.W_OK):
        return home / "everstep"
    try:
        return own_folder()
    except ValueError as error:
        raise StoreError(f"{error}, or set {FOLDER}") from None


def download(store: Store, key: str, size: int, path: Path) -> None:
    """Copy an object straight into a new file's pages; on the disk when it returns. Raises NoSuchKey, OSError."""
    with path.open("xb+") as file:
        if not size:
            return
        os.posix_fallocate(file.fileno(), 0, size)  # A full disk is an error here, and a SIGBUS later.
        with mmap.mmap(file.fileno(), size) as mapped, memoryview(mapped) as view:
            store.read_into(key, 0, view)
        os.fsync(file.fileno())


@contextmanager
def _copy_lock(entry: Path) -> Iterator[None]:
    """One at a time makes the entry's copy. Not by its lock: who has that keeps it, and others would wait for ever."""
    folder = os.open(entry, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _remove_unused(entry: Path) -> bool:
    """False when a living process uses it, or is making it."""
    lock = os.open(entry / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        for folder in entry.iterdir():
            if folder.is_dir() and not folder.name.startswith("~draft-"):
                shutil.rmtree(folder)
        return True
    finally:
        os.close(lock)


def _last_used_time(entry: Path) -> float:
    """Unix time; of a copy that was made here and never opened: when it was made."""
    lock = entry / _LOCK
    return (lock if lock.exists() else entry).stat().st_mtime


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def _explain_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{error.filename or root}: {error.strerror}; set {FOLDER} to a folder with space") from error
