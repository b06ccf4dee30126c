"""A user's code in the store: one archive under the digest of its files, which every node of a job unpacks.

An address is `s3://bucket/prefix/code/<digest>#path/of/script.py`.
"""

import gzip
import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from everstep.runtime.store import NoSuchKey, Store, StoreError, open_store
from everstep.runtime.system.own_folder import own_folder

ARCHIVE = "code.tar.gz"
_ADDRESS = re.compile(r"(?P<place>.+/code/(?P<digest>[0-9a-f]{16}))#(?P<script>.+)")


def is_code_address(script: str) -> bool:
    """Whether a script is named by its address in a store, not by its path."""
    return _ADDRESS.fullmatch(script) is not None


def script_name(script: str) -> str:
    """The script's file name, whether it is an address or a path."""
    address = _ADDRESS.fullmatch(script)
    return PurePosixPath(address["script"] if address else script).name


def put_code(store: Store, root: Path, files: Iterable[Path], script: Path) -> str:
    """Put these files below `root` into the store unless they are there; returns the address of `script`, one of them.

    Raises StoreError.
    """
    archive = _pack(root, files)
    key = f"code/{hashlib.sha256(archive).hexdigest()[:16]}"
    store.create(f"{key}/{ARCHIVE}", archive)
    return f"{store.uri.rstrip('/')}/{key}#{script.relative_to(root).as_posix()}"


def fetch_code(address: str) -> tuple[Path, Path]:
    """(the folder with the code, the script in it), unpacked once for all processes of this machine.

    Raises ValueError for what is no such address, and if the archive lacks the script; StoreError.
    """
    parts = _ADDRESS.fullmatch(address)
    if not parts:
        raise ValueError(f"{address}: no address of a script, which ends with /code/DIGEST#SCRIPT")
    folder = own_folder() / "code" / parts["digest"]
    if not folder.is_dir():
        _unpack(parts["place"], folder)
    script = (folder / parts["script"]).resolve()
    if not script.is_relative_to(folder.resolve()) or not script.is_file():
        raise ValueError(f"{address}: no such script in its code")
    return folder, script


def _pack(root: Path, files: Iterable[Path]) -> bytes:
    """A tar.gz with these files and nothing that differs between two machines: times, owners."""
    archive = io.BytesIO()
    with gzip.GzipFile(fileobj=archive, mode="wb", mtime=0) as out, tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(files):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size, entry.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _unpack(place: str, folder: Path) -> None:
    """Invariant: a folder with its final name is complete."""
    try:
        archive = open_store(place, read_only=True).get(ARCHIVE)
    except NoSuchKey:
        raise StoreError(f"{place}: no code there; submit the run again") from None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="~") as fresh:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            tar.extractall(Path(fresh, "code"), filter="data")
        try:
            Path(fresh, "code").rename(folder)
        except OSError:
            if not folder.is_dir():  # Another process was first.
                raise
