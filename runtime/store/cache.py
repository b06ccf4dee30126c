"""Local copies of finished data in an S3 store, fetched once and shared by every process of this machine.

Data under one address never changes, so a complete copy stays valid. Copies lie in EVERSTEP_CACHE; by default in the
user's cache folder, or in a temporary folder if the user has none, as in a pod. Together they take at most
EVERSTEP_CACHE_BYTES. The least recently used copies make room; copies in use by a living process stay.
"""

import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from everstep.runtime.store.protocol import Store, StoreError, TooLarge
from everstep.runtime.system.file_lock import hold_lock, open_locked
from everstep.runtime.system.own_folder import own_folder

FOLDER, BYTES = "EVERSTEP_CACHE", "EVERSTEP_CACHE_BYTES"
DEFAULT_BYTES = 50_000_000_000
_LOCK = "lock"
_OPEN_LOCK = os.O_RDWR | os.O_CREAT


class Cache:
    """The cache that `environment` configures.

    Raises StoreError for a size that is not a number, and if the temporary folder belongs to another user, who could
    put other data there.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.root = Path(environment[FOLDER]).absolute() if environment.get(FOLDER) else _default_folder(environment)
        limit = environment.get(BYTES) or str(DEFAULT_BYTES)
        if not limit.isdigit():
            raise StoreError(f"{BYTES}={limit}: give a whole number of bytes")
        self.limit = int(limit)

    def path_of(self, endpoint: str, uri: str) -> Path:
        """The path of the copy of `uri`, present or not. Its last part is that of the address."""
        entry = hashlib.sha256(f"{endpoint} {uri}".encode()).hexdigest()[:16]
        return self.root / entry / uri.rpartition("/")[2]

    def fetch(self, place: Path, open_source: Callable[[], Store], manifest: str, without: str = "") -> Path:
        """Copy the whole store to `place` unless it is there, and return `place`. The copy is in use until this process
        ends. `open_source` opens the store and is called only to copy. Objects with the suffix `without` are left out,
        unless it is empty.

        Raises NoSuchKey without `manifest`, which is written last; StoreError if the data cannot be read or stored;
        TooLarge if it exceeds the cache.
        """
        with _explain_errors(self.root):
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = open_locked(place.parent / _LOCK, _OPEN_LOCK, is_shared=True, mode=0o600)
            try:
                if not place.is_dir():
                    # Only one process at a time makes the copy. A process holds the other lock while it uses the copy.
                    with hold_lock(place.parent):
                        if not place.is_dir():
                            self._make_copy(place, open_source(), manifest, without)
                os.utime(lock)
            except BaseException:
                os.close(lock)
                raise
            return place  # The process keeps the lock: it tells others that the copy is in use.

    def make_room(self, size: int, what: str) -> None:
        """Remove unused copies, the least recently used first, until `size` more bytes fit. Raises StoreError."""
        if size > self.limit:
            raise TooLarge(f"{what} has {size / 1e6:.0f} MB, {BYTES} allows {self.limit / 1e6:.0f} MB; raise it")
        sizes = {entry: _folder_bytes(entry) for entry in sorted(self.root.glob("*/"), key=_last_used_time)}
        for entry, bytes_used in sizes.items():
            if sum(sizes.values()) + size <= self.limit:
                return
            if bytes_used and _remove_unused(entry):
                sizes[entry] = 0
        if sum(sizes.values()) + size > self.limit:
            raise StoreError(
                f"{what} has {size / 1e6:.0f} MB; of the {self.limit / 1e6:.0f} MB in {self.root} too many are in use; "
                f"raise {BYTES}"
            )

    def _make_copy(self, place: Path, store: Store, manifest: str, without: str) -> None:
        last = store.get(manifest)
        needed_entries = (entry for entry in store.list("") if not without or not entry.key.endswith(without))
        missing_entries = [entry for entry in needed_entries if entry.key != manifest]
        self.make_room(sum(entry.size for entry in missing_entries), store.uri)
        fresh = place.with_name(f"~{place.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir()
            for entry in missing_entries:
                path = fresh / entry.key
                path.parent.mkdir(parents=True, exist_ok=True)
                download(store, entry.key, entry.size, path)
            (fresh / manifest).write_bytes(last)
            fresh.rename(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _default_folder(environment: Mapping[str, str]) -> Path:
    home = Path(environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")).absolute()
    nearest = next(folder for folder in (home, *home.parents) if folder.exists())
    if os.access(nearest, os.W_OK):
        return home / "everstep"
    try:
        return own_folder() / "cache"  # Beside it stand the folders of live launches: cleaning must not reach them.
    except ValueError as error:
        raise StoreError(f"{error}, or set {FOLDER}") from None


def download(store: Store, key: str, size: int, path: Path) -> None:
    """Copy an object straight into the pages of a new file. It is durable on return. Raises NoSuchKey, OSError."""
    with path.open("xb+") as file:
        if not size:
            return
        os.posix_fallocate(file.fileno(), 0, size)  # A full disk is an error here, and a SIGBUS later.
        with mmap.mmap(file.fileno(), size) as mapping, memoryview(mapping) as view:
            store.read_into(key, 0, view)
        os.fsync(file.fileno())


def _remove_unused(entry: Path) -> bool:
    """False if a living process uses the copy or is making it. A draft or shards that a living step makes here are
    locked themselves and stay; those of an ended one go, as it can make them again."""
    with suppress(BlockingIOError), hold_lock(entry / _LOCK, _OPEN_LOCK, wait_s=0, mode=0o600):
        for folder in filter(Path.is_dir, entry.iterdir()):
            with suppress(BlockingIOError, FileNotFoundError), hold_lock(folder, wait_s=0):
                shutil.rmtree(folder)
        return True
    return False


def _last_used_time(entry: Path) -> float:
    """Unix time. For a copy that was made here and never opened: the time when it was made. For the shards that an
    interrupted step left: the time of the last one, as the step's next try soon takes them up."""
    lock = entry / _LOCK
    times = [(lock if lock.exists() else entry).stat().st_mtime]
    for shards in entry.glob("~shards-*"):
        with suppress(FileNotFoundError):
            times.append(shards.stat().st_mtime)
    return max(times)


def _folder_bytes(folder: Path) -> int:
    """Files may come and go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.path.getsize(Path(place, name))
    return total


@contextmanager
def _explain_errors(root: Path) -> Iterator[None]:
    """Turn an OSError into one line with the path and the remedy."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{error.filename or root}: {error.strerror}; set {FOLDER} to a folder with space") from error
