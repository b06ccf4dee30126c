"""A store in a directory: an object is a file, and its key is the path. Needs a file system with hard links.

Objects appear by rename or link of a complete temporary file beside them, so no reader sees a half-written one.
Temporary names begin with `~`, which no key can. A temporary file is locked (flock) while its writer lives; so `sweep`
recognises the files of killed writers, on this machine and on others. A folder is removed with its last object.

The directory may be a symbolic link, but no link below it is followed. Each folder of a key is opened relative to the
one above it, so nobody can swap in a link meanwhile.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from everstep.runtime.store.direct import open_direct, read_at, write_at
from everstep.runtime.store.pace import Pace
from everstep.runtime.store.protocol import Entry, NoSuchKey, StoreError, TooShort, check_key, check_prefix
from everstep.runtime.system.file_lock import lock

_CHUNK = 64 << 20
_MAX_PARALLEL = 4
"""Chunks of one object that are read in parallel, to use the disk's queue and several cores."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TEMPORARY = re.compile(r"~\d+-[0-9a-f]{12}")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_ABANDONED_S = 24 * 3600.0
"""Without locks in the file system: a temporary file that has not changed for this long has no writer."""
_FRESH_S = 60.0
"""An empty folder or file younger than this may belong to an object that is about to be written."""
_ATTEMPTS = 100
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryStore:
    """The Store in `directory`, which is created if missing, unless `read_only`. `pace` limits writes.

    Raises StoreError if the directory cannot be created.
    """

    def __init__(self, directory: str | Path, read_only: bool = False, pace: Pace | None = None) -> None:
        self._root = Path(os.path.abspath(directory))
        self.uri = str(self._root)
        self._pace = pace or Pace()
        if not read_only:
            with _explain_errors(self._root, "be a folder"):
                self._root.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with self._open_object(key) as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        with (
            self._open_object(key) as file,
            buffer.cast("B") as view,
            open_direct(file.fileno(), os.O_RDONLY, len(view)) as direct,
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
            with ThreadPoolExecutor(min(_MAX_PARALLEL, len(parts)), "everstep-store") as pool:
                for _ in pool.map(read, parts):
                    pass

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        self._write(key, source, _replace)

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        with (
            _explain_errors(path, "write"),
            suppress(FileNotFoundError, NotADirectoryError),
            self._open_folder(path.parent) as folder,
        ):
            os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            return False
        return self._write(key, data, _link)

    def list(self, prefix: str) -> Iterator[Entry]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        return self._walk(self._root / folder, f"{folder}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with (
            _explain_errors(path, "remove"),
            suppress(FileNotFoundError, NotADirectoryError),
            self._open_folder(path.parent) as folder,
        ):
            os.unlink(path.name, dir_fd=folder)
        self._prune(path.parent)

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        """Remove the temporary files of killed writers below `prefix`, and empty folders unchanged for a minute. Yields
        each before its removal; a folder's key ends with '/'. With `dry_run` nothing is removed."""
        check_prefix(prefix)
        top = self._root / prefix.rpartition("/")[0]
        with suppress(FileNotFoundError, NotADirectoryError), self._open_folder(top) as at:
            for place, _, files, folder in os.fwalk(".", topdown=False, dir_fd=at):
                path, before = top / place, os.stat(folder)
                temporary_files = [
                    name for name in files if _TEMPORARY.fullmatch(name) and not _has_living_writer(folder, name)
                ]
                for name in temporary_files:
                    with _explain_errors(path / name, "remove"), suppress(FileNotFoundError):
                        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        yield Entry(str((path / name).relative_to(self._root)), facts.st_size, facts.st_mtime)
                        if not dry_run:
                            os.unlink(name, dir_fd=folder)
                exists = path != self._root and os.stat(folder).st_nlink  # 0: pruned with the last folder below it.
                idle = before.st_mtime < time.time() - _FRESH_S
                if exists and idle and not set(os.listdir(folder)) - set(temporary_files if dry_run else ()):
                    yield Entry(f"{path.relative_to(self._root)}/", 0, before.st_mtime)
                    if not dry_run:
                        self._prune(path)

    def free_bytes(self) -> int:
        """Bytes that can still be written."""
        return shutil.disk_usage(self._root).free

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    @contextmanager
    def _open_folder(self, folder: Path, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder of this store. With `make` it is created, durably. Raises StoreError if a symbolic
        link is on the way, FileNotFoundError, NotADirectoryError."""
        at, path = os.open(self._root, _OPEN_FOLDER), self._root
        try:
            for name in folder.relative_to(self._root).parts:
                path /= name
                inner = _open_subfolder(at, name, path, make)
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    @contextmanager
    def _open_object(self, key: str) -> Iterator[FileIO]:
        path = self._path(key)
        with _explain_errors(path, "read"):
            try:
                with self._open_folder(path.parent) as folder:
                    file = FileIO(path.name, opener=lambda name, how: os.open(name, how | os.O_NOFOLLOW, dir_fd=folder))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NoSuchKey(key) from None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _symlink_error(path) from None
                raise
            with file:
                yield file

    def _write(self, key: str, source: bytes | memoryview | Path, publish: Callable[[int, str, str], bool]) -> bool:
        path = self._path(key)
        with _explain_errors(path, "write"):
            folder, temporary, file = self._create_temporary(path.parent)
            try:
                try:
                    with file:  # Closing releases the lock, so publish first: an unlocked file would be swept.
                        self._copy(source, file.fileno())
                        os.fsync(file.fileno())
                        is_published = publish(folder, temporary, path.name)
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=folder)
                os.fsync(folder)
            finally:
                os.close(folder)
            return is_published

    def _create_temporary(self, folder: Path) -> tuple[int, str, FileIO]:
        """Create and lock a temporary file. Returns the descriptor of its folder, its name there, and the file.

        Creates the folder, and does so again if another process prunes it meanwhile.
        """
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError), self._open_folder(folder, make=True) as at:
                name = f"~{os.getpid()}-{secrets.token_hex(6)}"
                file = FileIO(os.open(name, _CREATE_NEW, 0o666, dir_fd=at), "w")
                if _try_lock(file):
                    return os.dup(at), name, file
                file.close()  # It was unlocked for a moment, and is being swept.
                os.unlink(name, dir_fd=at)
        raise OSError(errno.EAGAIN, f"removed during each of {_ATTEMPTS} attempts to write it")

    def _prune(self, folder: Path) -> None:
        """Remove the folder if it is empty, then its parents as far as they are empty."""
        while self._root in folder.parents:
            try:
                with self._open_folder(folder.parent) as above:
                    os.rmdir(folder.name, dir_fd=above)
            except (OSError, StoreError):
                return
            folder = folder.parent

    def _copy(self, source: bytes | memoryview | Path, file: int) -> None:
        if isinstance(source, Path):
            with _explain_errors(source, "read"):
                origin = source.open("rb")
            with origin:
                while count := os.sendfile(file, origin.fileno(), None, self._pace.chunk_bytes(_CHUNK)):
                    self._pace.take(count)
            return
        with memoryview(source).cast("B") as data, open_direct(file, os.O_WRONLY, len(data)) as direct:
            bytes_copied = 0
            for piece in self._pace.slices(data, _CHUNK):
                write_at(file, direct, piece, bytes_copied)
                bytes_copied += len(piece)

    def _walk(self, folder: Path, base: str, prefix: str) -> Iterator[Entry]:
        entries_with_facts: list[tuple[str, os.stat_result]] = []
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            self._open_folder(folder) as at,
            os.scandir(at) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):  # It was removed meanwhile.
                    facts = entry.stat(follow_symlinks=False)
                    entries_with_facts.append((entry.name + "/" * stat.S_ISDIR(facts.st_mode), facts))
        for name, facts in sorted(entries_with_facts, key=lambda entry: entry[0]):
            key = base + name
            if name.startswith("~"):
                continue
            if name.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(folder / name, key, prefix)
            elif key.startswith(prefix) and stat.S_ISREG(facts.st_mode):
                yield Entry(key, facts.st_size, facts.st_mtime)


def _try_lock(file: FileIO) -> bool:
    """Lock the file. Returns False if another process holds the lock, or the file was removed. Without locks in the
    file system it returns True; the age of the file serves instead."""
    try:
        lock(file.fileno(), wait_s=0)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return os.fstat(file.fileno()).st_nlink > 0


def _has_living_writer(folder: int, name: str) -> bool:
    """Is a living process writing that temporary file of the open folder?"""
    try:
        with FileIO(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)) as file:
            facts = os.fstat(file.fileno())
            if not facts.st_size and facts.st_mtime > time.time() - _FRESH_S:
                return True
            lock(file.fileno(), is_shared=True, wait_s=0)
    except FileNotFoundError:
        return False
    except OSError as error:
        changed_at = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        return not (error.errno in _NO_LOCKS and changed_at < time.time() - _ABANDONED_S)
    return False


def _open_subfolder(at: int, name: str, path: Path, make: bool) -> int:
    """A descriptor of the folder `name` in the open folder `at`; `path` is its path."""
    try:
        return os.open(name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise _symlink_error(path) from None
        raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=at)
        os.fsync(at)
    return _open_subfolder(at, name, path, make=False)


def _symlink_error(path: Path) -> StoreError:
    return StoreError(
        f"{path}: is a symbolic link, which a store does not follow; put the files there, or mount their folder"
    )


def _replace(folder: int, temporary: str, name: str) -> bool:
    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    return True


def _link(folder: int, temporary: str, name: str) -> bool:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    return True


@contextmanager
def _explain_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn an OSError into one line with the path and the remedy."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        mend = "; free some space or choose another --store" if error.errno in _DISK_FULL else ""
        raise StoreError(f"{path}: cannot {verb}: {error.strerror}{mend}") from error
