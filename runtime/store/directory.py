"""A store in a directory: an object is a file, its key the path. Needs a file system with hard links.

Objects appear by rename or link of a finished temporary file beside them, so that no reader sees a half-written one.
Temporary names begin with `~`, which no key can. A temporary file is locked (flock) for as long as its writer lives: by
that `sweep` knows what killed ones left, on this machine and on others. Folders without objects go with the last one.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from runtime.store.direct import past_the_cache, read_at, write_at
from runtime.store.pace import Pace
from runtime.store.protocol import Entry, NoSuchKey, StoreError, TooShort, check_key, check_prefix

_CHUNK = 64 << 20
_PARALLEL = 4
"""Chunks of one object that are read at once: a disk's queue and several cores are used."""
_TEMPORARY = re.compile(r"~\d+-[0-9a-f]{12}")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FORGOTTEN_S = 24 * 3600.0
"""Where the file system knows no locks: nobody writes a file for so long without a change of it."""
_ATTEMPTS = 100
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryStore:
    """The Store in `directory`, which is made when missing, unless `read_only`; writes take turns by `pace`.

    Raises StoreError when it cannot be made.
    """

    def __init__(self, directory: str | Path, read_only: bool = False, pace: Pace | None = None) -> None:
        self._root = Path(os.path.abspath(directory))
        self.uri = str(self._root)
        self._pace = pace or Pace()
        if not read_only:
            with _told(self._root, "make"):
                self._root.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with self._reading(key) as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        with (
            self._reading(key) as file,
            buffer.cast("B") as view,
            past_the_cache(file.fileno(), os.O_RDONLY, len(view)) as direct,
        ):

            def read(first: int) -> None:
                with view[first : first + _CHUNK] as part:
                    count = read_at(file.fileno(), direct, part, start + first)
                    if count < len(part):
                        end = first + count
                        raise TooShort(f"{self._root / key}: ends at byte {start + end}, {len(view) - end} too early")

            parts = range(0, len(view), _CHUNK)
            if len(parts) <= 1:
                for first in parts:
                    read(first)
                return
            with ThreadPoolExecutor(min(_PARALLEL, len(parts)), "everstep-store") as pool:
                for _ in pool.map(read, parts):
                    pass

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        self._write(key, source, _replace)

    def create(self, key: str, data: bytes) -> bool:
        if self._path(key).exists():
            return False
        return self._write(key, data, _link)

    def list(self, prefix: str) -> Iterator[Entry]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        return self._walk(self._root / folder, f"{folder}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _told(path, "remove"), suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        self._prune(path.parent)

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        """Remove what killed writers left below `prefix`, and folders without objects; tells each (a folder's key ends
        with '/') before it goes. With `dry_run` nothing goes."""
        check_prefix(prefix)
        for place, _, files in os.walk(self._root / prefix.rpartition("/")[0], topdown=False):
            here = Path(place)
            left = [here / name for name in files if _TEMPORARY.fullmatch(name) and not _is_owned(here / name)]
            for path in left:
                with _told(path, "remove"), suppress(FileNotFoundError):
                    facts = path.stat()
                    yield Entry(str(path.relative_to(self._root)), facts.st_size, facts.st_mtime)
                    if not dry_run:
                        path.unlink()
            with suppress(FileNotFoundError):
                if here != self._root and not set(os.listdir(here)) - {path.name for path in left if dry_run}:
                    yield Entry(f"{here.relative_to(self._root)}/", 0, here.stat().st_mtime)
                    if not dry_run:
                        self._prune(here)

    def free_bytes(self) -> int:
        """What can still be written here."""
        return shutil.disk_usage(self._root).free

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    @contextmanager
    def _reading(self, key: str) -> Iterator[FileIO]:
        path = self._path(key)
        with _told(path, "read"):
            try:
                file = path.open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NoSuchKey(key) from None
            with file:
                yield file

    def _write(self, key: str, source: bytes | memoryview | Path, publish: Callable[[Path, Path], bool]) -> bool:
        path = self._path(key)
        with _told(path, "write"):
            temporary, file = _temporary(path.parent)
            try:
                with file:  # Until it is the object: what is closed is nobody's.
                    self._copy(source, file.fileno())
                    os.fsync(file.fileno())
                    published = publish(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # Somebody has deleted it since.
                _sync_directory(path.parent)
            return published

    def _prune(self, folder: Path) -> None:
        """Remove the folder, and those above it, as far as nothing is in them."""
        while self._root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _copy(self, source: bytes | memoryview | Path, file: int) -> None:
        if isinstance(source, Path):
            with _told(source, "read"):
                origin = source.open("rb")
            with origin:
                while count := os.sendfile(file, origin.fileno(), None, self._pace.piece(_CHUNK)):
                    self._pace.take(count)
            return
        with memoryview(source).cast("B") as data, past_the_cache(file, os.O_WRONLY, len(data)) as direct:
            done = 0
            for piece in self._pace.slices(data, _CHUNK):
                write_at(file, direct, piece, done)
                done += len(piece)

    def _walk(self, folder: Path, base: str, prefix: str) -> Iterator[Entry]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name + "/" * entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = base + entry.name
            if entry.name.startswith("~"):
                continue
            if entry.is_dir():
                if (key + "/").startswith(prefix) or prefix.startswith(key + "/"):
                    yield from self._walk(folder / entry.name, key + "/", prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    facts = entry.stat()
                    yield Entry(key, facts.st_size, facts.st_mtime)


def _temporary(folder: Path) -> tuple[Path, FileIO]:
    """A new file there, open and locked; the folder is made, again if somebody prunes it meanwhile."""
    for _ in range(_ATTEMPTS):
        path = folder / f"~{os.getpid()}-{secrets.token_hex(6)}"
        with suppress(FileNotFoundError):
            _make_durable(folder)
            file = path.open("xb", buffering=0)
            if _is_locked(file):
                return path, file
            file.close()  # It is being swept: it was nobody's for a moment.
            path.unlink(missing_ok=True)
    raise OSError(errno.EAGAIN, "removed again and again while it was begun")


def _is_locked(file: FileIO) -> bool:
    """Lock it; False: somebody else has, or it is gone. Where the file system knows no locks, its age must do."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return os.fstat(file.fileno()).st_nlink > 0


def _is_owned(path: Path) -> bool:
    """Does a living process write that temporary file?"""
    try:
        with path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        known_by_age = error.errno in _NO_LOCKS
        return not (known_by_age and path.stat().st_mtime < time.time() - _FORGOTTEN_S)
    return False


def _make_durable(folder: Path) -> None:
    """Make the folder and its missing parents so that they outlive a power cut."""
    if folder.is_dir():
        return
    _make_durable(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_directory(folder.parent)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(temporary: Path, path: Path) -> bool:
    os.replace(temporary, path)
    return True


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


@contextmanager
def _told(path: Path, verb: str) -> Iterator[None]:
    """Turn the file system's refusal into one line with the path and the mend."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        mend = "; free some space or choose another --store" if error.errno in _FULL else ""
        raise StoreError(f"{path}: cannot {verb}: {error.strerror}{mend}") from error
