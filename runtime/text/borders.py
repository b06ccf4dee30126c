"""Where files may be cut, so that several readers share one, without decompressing anything.

Plain lines may be cut at any byte; Zstandard between its frames (RFC 8878, section 3.1); gzip between the blocks of
BGZF (SAM specification, section 4.1), as other gzip files do not record the lengths of their members; Parquet between
row groups; tar and zip between members. Everything else is read whole.
"""

import struct
import tarfile
import zipfile
from dataclasses import dataclass
from io import RawIOBase

from everstep.runtime.store import Unavailable
from everstep.runtime.text import source
from everstep.runtime.text.errors import TextError
from everstep.runtime.text.files import Kind, kind_of

_ZST_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_RLE, _RESERVED = 1, 3
_MAX_HEADER_BYTES = 18
_TAR_BLOCK = 512
_BGZF = struct.Struct("<4s6xH2sHH")
BORDER_SPACING = 1 << 18
"""Minimum distance of borders in bytes: a file may have a frame for each document."""


@dataclass(frozen=True)
class Extent:
    """A file, or a member of an archive: bytes that hold documents."""

    path: str
    kind: Kind
    size: int
    """Bytes as stored; for a Parquet file, the total of its row groups."""
    borders: tuple[int, ...] | None = None
    """Where it may be cut: increasing, from 0 to `size`. None: at any byte."""
    member: str = ""
    base: int = 0
    """First byte of the extent in the file."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.path}!{self.member}" if self.member else self.path


def extents(name: str) -> list[Extent]:
    """The extents of the file, in order. Raises TextError if the file is unreadable, cut off or damaged;
    Unavailable, as another try may help."""
    kind = kind_of(name)
    try:
        with source.open_bytes(name) as file:
            if kind is Kind.TAR:
                return _tar_members(file, name)
            if kind is Kind.ZIP:
                return _zip_members(file, name)
            return [Extent(name, kind, *_size_and_borders(file, name, kind))]
    except Unavailable:
        raise
    except OSError as error:
        raise TextError(f"{name}: cannot be read ({error.strerror or error})") from None


def _size_and_borders(file: RawIOBase, name: str, kind: Kind) -> tuple[int, tuple[int, ...] | None]:
    """Size and borders."""
    if kind is Kind.PARQUET:
        borders = _row_groups(file, name)
        return borders[-1], borders
    size = file.seek(0, 2)
    if kind is Kind.LINES:
        return size, None
    if kind is Kind.LINES_ZST:
        return size, _zst_frames(file, name, 0, size)
    if kind in (Kind.LINES_GZ, Kind.JSON_GZ):
        return size, _bgzf_blocks(file, size)
    return size, (0, size)


def _tar_members(file: RawIOBase, name: str) -> list[Extent]:
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            members = [member for member in tar if member.isfile()]
            end = max([0, *(member.offset_data + -(-member.size // _TAR_BLOCK) * _TAR_BLOCK for member in members)])
    except tarfile.TarError as error:
        raise TextError(f"{name}: not a tar file ({error}); pack it again") from None
    file.seek(end)
    if file.read(_TAR_BLOCK) != bytes(_TAR_BLOCK):  # tarfile takes a truncated file for a complete one
        raise TextError(f"{name}: cut off after {len(members)} members; fetch it again")
    extents = []
    for member in members:
        if not member.name.endswith(Kind.LINES_ZST.value):
            raise TextError(f"{name}: its member {member.name} is not read; pack only {Kind.LINES_ZST.value} files")
        borders = _zst_frames(file, f"{name}!{member.name}", member.offset_data, member.size)
        extents.append(Extent(name, Kind.LINES_ZST, member.size, borders, member.name, member.offset_data))
    return extents


def _zip_members(file: RawIOBase, name: str) -> list[Extent]:
    try:
        with source.open_zip(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
    except zipfile.BadZipFile as error:
        raise TextError(f"{name}: not a zip file ({error}); pack it again") from None
    extents = []
    for member in members:
        kind = Kind.TEXT if member.filename.endswith(".txt") else Kind.LINES
        if not member.filename.endswith(kind.value):
            raise TextError(f"{name}: its member {member.filename} is not read; pack only .jsonl and .txt files")
        extents.append(Extent(name, kind, member.file_size, (0, member.file_size), member.filename))
    return extents


def _zst_frames(file: RawIOBase, name: str, base: int, size: int) -> tuple[int, ...]:
    borders, at = [0], 0
    while at < size:
        at = _zst_frame_end(file, name, base, at, size)
        if at > size:
            raise TextError(f"{name}: cut off at byte {size}, in the middle of a Zstandard frame; fetch it again")
        if at - borders[-1] >= BORDER_SPACING or at == size:
            borders.append(at)
    return tuple(borders)


def _zst_frame_end(file: RawIOBase, name: str, base: int, at: int, size: int) -> int:
    """The byte after the frame that begins at `at`; greater than `size` if the frame is cut off."""
    import zstandard

    file.seek(base + at)
    head = file.read(_MAX_HEADER_BYTES)
    if len(head) < 8:
        return size + 1
    if int.from_bytes(head[:4], "little") in _SKIPPABLE:
        return at + 8 + int.from_bytes(head[4:8], "little")
    try:
        parameters, length = zstandard.get_frame_parameters(head), zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        if head[:4] == _ZST_MAGIC:
            return size + 1
        raise TextError(f"{name}: no Zstandard frame at byte {at}; the file is damaged, fetch it again") from None
    at, last = at + length, False
    while not last and at < size:
        file.seek(base + at)
        block = int.from_bytes(file.read(3), "little")
        last, kind = bool(block & 1), block >> 1 & 3
        if kind == _RESERVED:
            raise TextError(f"{name}: no Zstandard block at byte {at}; the file is damaged, fetch it again")
        at += 3 + (1 if kind == _RLE else block >> 3)
    return at + (4 if parameters.has_checksum else 0) if last else size + 1


def _bgzf_blocks(file: RawIOBase, size: int) -> tuple[int, ...]:
    borders, at = [0], 0
    while at < size:
        file.seek(at)
        head = file.read(_BGZF.size)
        if len(head) < _BGZF.size:
            return 0, size
        magic, _, field, length, block = _BGZF.unpack(head)
        if magic != b"\x1f\x8b\x08\x04" or (field, length) != (b"BC", 2) or at + block + 1 > size:
            return 0, size  # a plain gzip file
        at += block + 1
        if at - borders[-1] >= BORDER_SPACING or at == size:
            borders.append(at)
    return tuple(borders)


def _row_groups(file: RawIOBase, name: str) -> tuple[int, ...]:
    """Cumulative bytes of the row groups."""
    import pyarrow
    from pyarrow import parquet

    try:
        meta = parquet.ParquetFile(file).metadata
    except pyarrow.ArrowException as error:
        raise TextError(f"{name}: not a Parquet file ({str(error).splitlines()[0]}); fetch it again") from None
    borders = [0]
    for group in range(meta.num_row_groups):
        borders.append(borders[-1] + max(1, meta.row_group(group).total_byte_size))
    return tuple(borders)
