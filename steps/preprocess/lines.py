"""Reading the lines of a corpus file by byte range."""

import io
from collections.abc import Iterator
from typing import Any

import msgspec
import zstandard

_BUFFER = 1 << 20


class _Line(msgspec.Struct):
    """What is read of a line; unknown keys are skipped."""

    text: str


_decode = msgspec.json.Decoder(_Line).decode


def texts(path: str, start: int, end: int) -> Iterator[str]:
    """The documents whose lines begin in bytes [start, end) of the uncompressed file."""
    with open(path, "rb") as file:
        reader: Any = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from (_decode(line).text for line in lines(io.BufferedReader(reader, _BUFFER), start, end))


def lines(stream: Any, start: int, end: int) -> Iterator[bytes]:
    """The lines of a stream whose first byte lies in [start, end); empty ones are left out."""
    position = max(start - 1, 0)
    _skip(stream, position)
    if start:
        # From the byte before: its line is another's, and ends just there when a line begins at `start`.
        position += len(stream.readline())
    while position < end:
        line = stream.readline()
        if not line:
            return
        position += len(line)
        if line.strip():
            yield line


def _skip(stream: Any, count: int) -> None:
    while count:
        data = stream.read(min(count, _BUFFER))
        if not data:
            return
        count -= len(data)
