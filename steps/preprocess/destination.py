"""Where --output-prefix leads: a folder of this machine, or a prefix of an S3 store (by way of a local folder)."""

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from everstep.runtime.store import NoSuchKey, StoreError, open_store
from everstep.runtime.system import atomic
from everstep.steps.entry import StepError, disk_error_code

S3 = "s3://"
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class OutputPlace(Protocol):
    """Files that readers see complete or not at all."""

    uri: str

    def workspace(self, name: str) -> Path:
        """A folder of this machine for unfinished files; the same folder for the same name."""
        ...

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is no such file."""
        ...

    def exists(self, name: str) -> bool: ...

    def write(self, name: str, data: bytes) -> None: ...

    def create(self, name: str, data: bytes) -> bool:
        """Write the file unless it exists (False). Of several that try at once, one succeeds."""
        ...

    def publish(self, file: Path) -> None:
        """Move a finished file of a workspace to the output, under the same name."""
        ...

    def remove(self, name: str) -> None:
        """Remove the file; no error if there is none."""
        ...


def output_place(prefix: str) -> tuple[OutputPlace, str]:
    """The output's place, and the prefix of its file names. Raises StepError."""
    if prefix.startswith(S3):
        folder, _, name = prefix.rpartition("/")
        if not name or len(folder) <= len(S3):
            raise StepError(f"--output-prefix {prefix}: give s3://bucket/NAME or s3://bucket/folder/NAME")
        return _Objects(folder), name
    path = Path(prefix.removeprefix("file://")).absolute()
    return _Folder(path.parent), path.name


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder, self.uri = folder, str(folder)

    def workspace(self, name: str) -> Path:
        return self._folder / f".{name}"

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return (self._folder / name).read_bytes()
        return None

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def write(self, name: str, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic.replace(self._folder / name, data)

    def create(self, name: str, data: bytes) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return atomic.create(self._folder / name, data, mode=0o666)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        self.write(name, data)  # Such a file system cannot say who is first.
        return True

    def publish(self, file: Path) -> None:
        os.replace(file, self._folder / file.name)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class _Objects:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self._store = open_store(uri)
        except StoreError as error:
            raise StepError(f"--output-prefix {error}", disk_error_code(error)) from None

    def workspace(self, name: str) -> Path:
        return Path(tempfile.gettempdir()) / f"everstep-{name}"

    def read(self, name: str) -> bytes | None:
        with suppress(NoSuchKey):
            return self._store.get(name)
        return None

    def exists(self, name: str) -> bool:
        with suppress(NoSuchKey):
            self._store.get(name, 0, 0)
            return True
        return False

    def write(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(name, data)

    def publish(self, file: Path) -> None:
        self._store.put(file.name, file)

    def remove(self, name: str) -> None:
        self._store.delete(name)
