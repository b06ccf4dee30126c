"""The documents that begin in a range of a file.

A line belongs to the range that contains the preceding line break; the first line of a file belongs to the first range.
So every line belongs to exactly one range wherever the cuts fall. A reader skips to its first line break and reads its
last line beyond the end of its range, as Hadoop's TextInputFormat does.
"""

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from everstep.runtime.store import Unavailable
from everstep.runtime.text import source
from everstep.runtime.text.borders import Extent
from everstep.runtime.text.errors import TextError
from everstep.runtime.text.files import Kind

_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 256
MAX_LINE_BYTES = 64 << 20
"""A longer line is a bad document. Some kilobytes of compressed data may hold hundreds of megabytes without a line
break."""
_OMITTED_LINE = b"\0 a line that was left out"
_WINDOW = 1 << 31
"""The window size of `zstd --long=31`."""
Texts = tuple[str | None, ...]
"""The texts of one document, one for each key; None for a key that it lacks."""


@dataclass(frozen=True)
class Piece:
    """Bytes [start, end) of an extent; both are borders of it."""

    path: str
    kind: Kind
    size: int
    """Size of the whole extent."""
    start: int
    end: int
    member: str = ""
    base: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.path}!{self.member}" if self.member else self.path


def piece_of(extent: Extent, start: int, end: int) -> Piece:
    """The range of an extent between two of its borders."""
    return Piece(extent.path, extent.kind, extent.size, start, end, extent.member, extent.base)


class _BadDocument(ValueError):  # noqa: N818 - what it is
    """The defect of a document, and its column in the line."""

    def __init__(self, text: str, column: int = 0) -> None:
        super().__init__(text)
        self.column = column


class DocumentReader:
    """Reads the texts under `keys` from lines, rows and whole files. A whole file has only one text, whatever its
    key."""

    def __init__(
        self, keys: Sequence[str], *, is_required: bool = True, skip_bad: bool = False, flag: str = ""
    ) -> None:
        """`is_required`: a document that lacks one of the keys is bad. `skip_bad`: bad documents are counted, not
        raised. `flag` names the command line option for the keys, for errors."""
        self.skipped = 0
        """Number of bad documents so far."""
        self._done = 0
        self._window: _Window | None = None
        self._keys, self._required, self._skip_bad, self._flag = tuple(keys), is_required, skip_bad, flag
        fields = [(f"key{number}", str | None, None) for number in range(len(keys))]
        names = {f"key{number}": key for number, key in enumerate(keys)}
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=names)).decode

    @property
    def consumed_bytes(self) -> int:
        """Bytes of the pieces, as stored, that have been read so far."""
        return self._done + (self._window.taken if self._window else 0)

    def read(self, part: Piece) -> Iterator[Texts]:
        """Yield the documents of that piece, in order.

        Raises TextError with file, line and column for a bad document, and for damaged data; Unavailable.
        """
        how = {Kind.PARQUET: self._read_rows, Kind.TEXT: self._read_whole}.get(part.kind, self._read_lines)
        yield from how(part)
        self._done, self._window = self._done + part.end - part.start, None

    def _read_lines(self, part: Piece) -> Iterator[Texts]:
        decode, astuple = self._decode, msgspec.structs.astuple
        number = 0
        try:
            for number, line in enumerate(_split_lines(part, self._track_window), 1):
                try:
                    texts = astuple(decode(line))
                except ValueError:
                    texts = self._decode_refused_line(part, number, line)
                if texts is None:
                    continue
                if None in texts and self._required:
                    texts = self._decode_refused_line(part, number, line)
                    if texts is None:
                        continue
                yield texts
        except (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error, _zstd_error()) as error:
            place = f"{part.name}:{_count_lines_before(part) + number + 1}"
            raise TextError(f"{place}: the compressed data is damaged ({error}); fetch it again") from None

    def _track_window(self, window: "_Window") -> None:
        self._window = window

    def _decode_refused_line(self, part: Piece, number: int, line: bytes) -> Texts | None:
        """The texts of a line that the fast decoder refused; None to skip the line."""
        if not line.strip():
            return None
        try:
            if line.startswith(_OMITTED_LINE):
                raise _BadDocument(f"a line of more than {MAX_LINE_BYTES >> 20} MiB; split or remove it")
            return self._texts(_decode_json(line))
        except _BadDocument as error:
            if self._skip_bad:
                self.skipped += 1
                return None
            column = f":{error.column}" if error.column else ""
            place = f"{part.name}:{_count_lines_before(part) + number}{column}"
            raise TextError(f"{place}: {error}") from None

    def _texts(self, value: Any) -> Texts:
        if not isinstance(value, dict):
            value = dict.fromkeys(self._keys, value)  # The line is a bare text.
        return tuple(self._text(value, key) for key in self._keys)

    def _text(self, document: dict[str, Any], key: str) -> str | None:
        value, choose = document.get(key), f"choose one with {self._flag}" if self._flag else "fix the line"
        if value is None:
            if self._required:
                raise _BadDocument(f"no key {key!r} (there are: {', '.join(document)}); {choose}")
            return None
        if isinstance(value, list) and all(isinstance(paragraph, str) for paragraph in value):
            value = "\n\n".join(value)  # As lm-dataformat joins paragraphs.
        if not isinstance(value, str):
            raise _BadDocument(f"{key!r} is {type(value).__name__} where text is expected; {choose}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _BadDocument("half a surrogate pair is not text; fix or remove the line") from None
        return value

    def _read_whole(self, part: Piece) -> Iterator[Texts]:
        with ExitStack() as stack:
            data = _open_range(part, 0, part.size, stack).read()
        try:
            yield (data.decode(), *[None] * (len(self._keys) - 1))
        except UnicodeDecodeError as error:
            if self._skip_bad:
                self.skipped += 1
                return
            place = f"{part.name}:{data.count(10, 0, error.start) + 1}"
            raise TextError(f"{place}: not UTF-8 ({error.reason}); convert the file") from None

    def _read_rows(self, part: Piece) -> Iterator[Texts]:
        import pyarrow
        from pyarrow import parquet

        row = before = 0
        try:
            with source.open_bytes(part.path) as stored_file, parquet.ParquetFile(stored_file) as file:
                meta, at, groups = file.metadata, 0, []
                for group in range(meta.num_row_groups):
                    if part.start <= at < part.end:
                        groups.append(group)
                    elif at < part.start:
                        before += meta.row_group(group).num_rows
                    at += max(1, meta.row_group(group).total_byte_size)
                columns = [key for key in self._keys if key in file.schema_arrow.names]
                everything = dict.fromkeys(file.schema_arrow.names)
                for batch in file.iter_batches(_BATCH_ROWS, groups, columns):
                    for document in batch.to_pylist():
                        row += 1
                        texts = self._decode_row(part, before + row, document if columns else everything)
                        if texts is not None:
                            yield texts
        except Unavailable:
            raise
        except (pyarrow.ArrowException, OSError) as error:
            why = str(error).splitlines()[0]
            raise TextError(f"{part.name}: damaged after row {before + row} ({why}); fetch it again") from None

    def _decode_row(self, part: Piece, row: int, document: dict[str, Any]) -> Texts | None:
        try:
            return self._texts(document)
        except _BadDocument as error:
            if self._skip_bad:
                self.skipped += 1
                return None
            raise TextError(f"{part.name}: row {row}: {error}") from None


def _decode_json(line: bytes) -> Any:
    try:
        return json.loads(line.rstrip(b"\r\n").decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise _BadDocument(f"not JSON ({error.msg}); fix or remove the line", error.colno) from None
    except UnicodeDecodeError as error:
        raise _BadDocument(f"not UTF-8 ({error.reason}); fix or remove the line", error.start + 1) from None
    except RecursionError:
        raise _BadDocument("not JSON that can be read (nested too deeply); fix or remove the line") from None


def _split_lines(part: Piece, watch: Callable[["_Window"], None]) -> Iterator[bytes]:
    """Yield the lines whose preceding line break lies in the piece, including empty ones."""
    with ExitStack() as stack:
        head = _open_range(part, part.start, part.end, stack, watch)
        if part.start and not _read_line(head).endswith(b"\n"):
            return  # The piece lies within a line that began before it.
        line = b"\n"
        for line in iter(lambda: _read_line(head), b""):
            if line.endswith(b"\n"):
                yield line
        if part.end < part.size:
            rest = _read_line(_open_range(part, part.end, part.size, stack))
            if not line.endswith(b"\n"):
                long = (
                    line.startswith(_OMITTED_LINE)
                    or rest.startswith(_OMITTED_LINE)
                    or len(line) + len(rest) > MAX_LINE_BYTES
                )
                rest = _OMITTED_LINE if long else line + rest
            line = rest
            if line:
                yield line
        elif not line.endswith(b"\n"):
            yield line


def _read_line(stream: Any) -> bytes:
    """The next line; empty at the end. A line longer than MAX_LINE_BYTES is replaced by _OMITTED_LINE."""
    line = stream.readline(MAX_LINE_BYTES)
    if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
        return line
    while rest := stream.readline(_BUFFER_BYTES):
        if rest.endswith(b"\n"):
            return _OMITTED_LINE + b"\n"
    return _OMITTED_LINE


def _open_range(
    part: Piece, start: int, end: int, stack: ExitStack, watch: Callable[["_Window"], None] | None = None
) -> Any:
    """Open bytes [start, end) of an extent, decompressed. `watch` receives the window through which they are read."""
    file: Any = stack.enter_context(source.open_bytes(part.path))
    if part.path.endswith(Kind.ZIP.value):
        return stack.enter_context(stack.enter_context(source.open_zip(file)).open(part.member))
    raw = _Window(file, part.base + start, part.base + end)
    if watch:
        watch(raw)
    window = io.BufferedReader(raw, _BUFFER_BYTES)
    if part.kind in (Kind.LINES_GZ, Kind.JSON_GZ):
        return stack.enter_context(gzip.GzipFile(fileobj=window))
    if part.kind is Kind.LINES_ZST:
        import zstandard

        reader: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(window, read_across_frames=True)
        return io.BufferedReader(reader, _BUFFER_BYTES)
    return window


class _Window(io.RawIOBase):
    """Bytes [start, end) of a file."""

    def __init__(self, file: Any, start: int, end: int) -> None:
        super().__init__()
        file.seek(start)
        self._file: BinaryIO = file
        self._left = end - start
        self.taken = 0
        """Number of bytes read so far."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: self._left]
        count = self._file.readinto(view) if len(view) else 0  # type: ignore[attr-defined]
        self._left -= count
        self.taken += count
        return count


def _count_lines_before(part: Piece) -> int:
    """Number of lines in the file before the piece. Counted only for error messages."""
    if not part.start:
        return 0
    count = 1
    with (
        ExitStack() as stack,
        suppress(OSError, EOFError, zlib.error, _zstd_error()),
    ):  # If damaged, count as far as possible.
        stream = _open_range(part, 0, part.start, stack)
        for chunk in iter(lambda: stream.read(_BUFFER_BYTES), b""):
            count += chunk.count(b"\n")
    return count


def _zstd_error() -> type[Exception]:
    try:
        import zstandard
    except ImportError:
        return EOFError
    return zstandard.ZstdError
