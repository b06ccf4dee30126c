"""Archives of artifacts: packed from a pod's outputs, and unpacked inside of one new folder, whatever their names say.

Rules after Argo's executor (`archive`, `untar`, `unzip`): a tar is gzipped and keeps folders, files and links that stay
in it; a zip keeps files. `UnpackLimits` bounds what an archive may unpack to: a few bytes can stand for very many.
"""

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from everstep.runtime.workflow.artifacts.inside import BadPathError, resolve_inside

GZIP_MAGIC = b"\x1f\x8b"
GZIP_HEADER_BYTES = 10
"""Bytes that every gzip file begins with (RFC 1952)."""
CHUNK_BYTES = 1 << 20
HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
"""Members of a tar that are read into memory: they name the next member."""


class ArchiveError(Exception):
    """The archive cannot be unpacked: one line that says why."""


@dataclass(frozen=True)
class UnpackLimits:
    """What an archive may unpack to. A larger one is refused, and nothing of it is left."""

    unpacked_bytes: int = 1 << 30
    """Bytes that any archive may unpack to, however small it is; EVERSTEP_UNPACKED_BYTES sets it."""
    ratio: int = 200
    """Times its own size, where that is more. Text unpacks to 5 or 20 times its size, a gzip bomb to 1,030."""
    members: int = 1_000_000
    """Files, links and folders, including folders that only occur in a path."""
    header_bytes: int = 1 << 18
    """Bytes of a name or extended header of a tar; some hundred can be in memory at once."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "UnpackLimits":
        """The limits that the environment sets. Raises ValueError, one line, for a size that is not a number."""
        size = environment.get(UNPACKED_VARIABLE) or str(cls.unpacked_bytes)
        if not size.isdecimal():
            raise ValueError(f"{UNPACKED_VARIABLE}={size}: give a whole number of bytes")
        return cls(int(size))


UNPACKED_VARIABLE = "EVERSTEP_UNPACKED_BYTES"
DEFAULT_LIMITS = UnpackLimits()


class _Budget:
    """What is left of the limits while an archive of `packed_bytes` bytes is unpacked."""

    def __init__(self, limits: UnpackLimits, packed_bytes: int) -> None:
        self.bytes = max(limits.unpacked_bytes, limits.ratio * packed_bytes)
        self.members = limits.members
        self._refusal = (
            f"its {packed_bytes} bytes unpack to more than {self.bytes} bytes or {self.members} files; "
            f"{UNPACKED_VARIABLE}=BYTES allows it more bytes"
        )

    def spend(self, count: int) -> None:
        """Count unpacked bytes. Raises ArchiveError when there are too many."""
        self.bytes -= count
        if self.bytes < 0:
            raise ArchiveError(self._refusal)

    def make_folder(self, folder: Path) -> None:
        """Make the folder and its missing parents; each counts as a member."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for parent in reversed(missing):
            self.count_member()
            parent.mkdir(0o755)

    def count_member(self) -> None:
        """Count one member. Raises ArchiveError when there are too many."""
        self.members -= 1
        if self.members < 0:
            raise ArchiveError(self._refusal)


def pack_tar(place: Path, name: str, to: Path, level: int | None) -> None:
    """Pack a file or folder as the gzipped tar's one member of that name. Raises OSError, ValueError."""
    place = place.resolve()  # A link is followed, as on Argo.
    with tarfile.open(to, "w:gz", compresslevel=1 if level is None else max(0, level)) as archive:
        archive.add(
            place, name, filter=lambda member: member if member.isreg() or member.isdir() or member.issym() else None
        )


def pack_zip(place: Path, to: Path, name_in_zip: str) -> None:
    """Pack a file, as `name_in_zip` or by its own name, or the files of a folder. Raises OSError, ValueError.

    A link is packed as the file that it leads to in that folder. Other links and special files are empty members.
    """
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        if place.is_file():
            archive.write(place, name_in_zip or place.name)
            return
        root = place.resolve()
        for folder, below, names in os.walk(place):
            links = [name for name in below if Path(folder, name).is_symlink()]
            for file in (Path(folder, name) for name in [*names, *links]):
                target, member = file.resolve(), str(Path(place.name) / file.relative_to(place))
                if target.is_file() and target.is_relative_to(root):
                    archive.write(target, member)
                else:
                    archive.writestr(member, b"")


def copy_plain(place: Path, to: Path) -> None:
    """Copy a file, or the files of a folder and nothing else, as a bucket keeps it. Raises OSError."""
    if not place.is_dir():
        shutil.copyfile(place, to)
        return
    to.mkdir()
    for folder, _, names in os.walk(place):
        for name in names:
            file = Path(folder, name)
            if stat.S_ISREG(file.lstat().st_mode):
                target = to / file.relative_to(place)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def is_tarball(path: Path) -> bool:
    """Whether the content is a gzipped tar."""
    with path.open("rb") as file:
        if file.read(2) != GZIP_MAGIC:
            return False
    try:
        with (
            _as_archive_errors(),
            _open_tar(path, _Budget(DEFAULT_LIMITS, path.stat().st_size), DEFAULT_LIMITS) as archive,
        ):
            return archive.next() is not None
    except ArchiveError:
        return False


def untar(path: Path, out: Path, limits: UnpackLimits = DEFAULT_LIMITS) -> Path:
    """Unpack into the new folder `out`. Returns its only member, or the folder. Raises ArchiveError."""
    budget = _Budget(limits, path.stat().st_size)
    with _as_archive_errors(), _open_tar(path, budget, limits) as archive:
        out.mkdir()
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile would keep them all in memory.
            budget.count_member()
            _extract(archive, member, out, budget)
        top_folder = _unwrap_single(out)
        for link in _links(top_folder):
            _check_link(link, top_folder)  # A later member may have changed where it leads.
    return top_folder


def unzip(path: Path, out: Path, limits: UnpackLimits = DEFAULT_LIMITS) -> Path:
    """Unpack into the new folder `out` as `untar` does; every file is writable. Raises ArchiveError."""
    budget = _Budget(limits, path.stat().st_size)
    with _as_archive_errors(), zipfile.ZipFile(path) as archive:
        out.mkdir()
        for member in archive.infolist():
            budget.count_member()
            if (place := _member_path(out, member.filename, budget)) is None:
                continue
            if member.is_dir():
                budget.make_folder(place)
                continue
            with archive.open(member) as content:
                _write_file(place, content, 0o666, budget)
    return _unwrap_single(out)


def _unwrap_single(out: Path) -> Path:
    """The only member, moved beside the folder, or the folder. After the move, links by its old name lead out."""
    members = list(out.iterdir())
    if len(members) != 1:
        return out
    if members[0].is_symlink():
        _check_link(members[0], members[0])
    return members[0].rename(out.with_name(f"{out.name}.one"))


def _links(root: Path) -> Iterator[Path]:
    """The symbolic links below a folder."""
    for folder, names, files in os.walk(root):
        yield from (link for link in (Path(folder, name) for name in [*names, *files]) if link.is_symlink())


@contextmanager
def _as_archive_errors() -> Iterator[None]:
    """Turn whatever archive readers raise at hostile bytes into an ArchiveError of one line."""
    try:
        yield
    except ArchiveError:
        raise
    except EOFError as error:
        raise ArchiveError("unexpected EOF") from error
    except gzip.BadGzipFile as error:
        raise ArchiveError("gzip: invalid header or checksum") from error
    except zipfile.BadZipFile as error:
        raise ArchiveError("zip: not a valid zip file") from error
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ArchiveError(f"cannot be unpacked: {why}") from error


@contextmanager
def _open_tar(path: Path, budget: _Budget, limits: UnpackLimits) -> Iterator[Any]:
    """Open a gzipped tar as a stream that is read once."""

    class Member(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: Any, encoding: Any, errors: Any) -> "Member":
            member = super().frombuf(buf, encoding, errors)
            if member.type in HEADER_TYPES and not 0 <= member.size <= limits.header_bytes:
                raise ArchiveError(f"a name of {member.size} bytes; at most {limits.header_bytes} are read")
            return member

    if path.stat().st_size < GZIP_HEADER_BYTES:
        raise EOFError
    with gzip.open(path) as stream:
        metered_stream: Any = _MeteredStream(stream, budget)
        with tarfile.open(fileobj=metered_stream, mode="r|", tarinfo=Member) as archive:
            yield archive


class _MeteredStream:
    """A stream whose bytes are counted against the budget."""

    def __init__(self, stream: gzip.GzipFile, budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, count: int) -> bytes:
        piece = self._stream.read(count)
        self._budget.spend(len(piece))
        return piece


def _member_path(out: Path, name: str, budget: _Budget) -> Path | None:
    """Where a member goes; its parent is made, an earlier file or link there removed. None: it is the root itself."""
    parts = os.path.normpath(name.lstrip("/")).split("/")
    if parts == ["."]:
        return None
    try:
        resolve_inside(out, "/".join(parts))
        parent = resolve_inside(out, "/".join(parts[:-1])) if len(parts) > 1 else out
    except BadPathError:
        raise ArchiveError(f"illegal file path: {name[:200]}") from None
    budget.make_folder(parent)
    place = parent / parts[-1]
    if place.is_symlink() or place.is_file():
        place.unlink()
    return place


def _extract(archive: Any, member: tarfile.TarInfo, out: Path, budget: _Budget) -> None:
    """Extract one member of a tar; what is not a folder, file or link is left out."""
    if not (member.isdir() or member.isreg() or member.issym() or member.islnk()):
        return
    place = _member_path(out, member.name, budget)
    if place is None:
        return
    if member.isdir():
        budget.make_folder(place)
    elif member.issym():
        place.symlink_to(member.linkname)
        _check_link(place, out)
    elif member.islnk():
        try:
            os.link(resolve_inside(out, member.linkname.lstrip("/")), place)
        except BadPathError:
            raise ArchiveError(f"illegal link target: {member.name[:200]} -> {member.linkname[:200]}") from None
    else:
        content = archive.extractfile(member)
        assert content is not None, "a file has content"
        _write_file(place, content, member.mode & 0o755, budget if member.issparse() else None)
        with _ignore_bad_time():
            os.utime(place, (member.mtime, member.mtime))


@contextmanager
def _ignore_bad_time() -> Iterator[None]:
    """Ignore a modification time that no file can have."""
    try:
        yield
    except (OSError, OverflowError, ValueError):
        """The file keeps the time at which it was unpacked."""


def _check_link(link: Path, root: Path) -> None:
    """Raise ArchiveError for a link that leads out of `root`."""
    target, real_target = os.readlink(link), os.path.realpath(link)
    if target.startswith("/") or root.is_symlink() or not Path(real_target).is_relative_to(root.resolve()):
        raise ArchiveError(f"illegal symlink target: {link.name} -> {target[:200]}")


def _write_file(place: Path, content: IO[bytes], mode: int, budget: _Budget | None) -> None:
    """Write a new file. With a budget, bytes are counted here: a tar stream does not count holes of sparse files."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while piece := content.read(CHUNK_BYTES):
            if budget:
                budget.spend(len(piece))
            file.write(piece)
        os.fchmod(file.fileno(), mode)
