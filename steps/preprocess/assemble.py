"""Shards to one indexed dataset: first their tokens, without dropped documents, then the index."""

import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from everstep.runtime import text
from everstep.runtime.data import write_index
from everstep.steps.preprocess.parts import Part

_CHUNK = 64 << 20
NOTHING_DROPPED = np.empty(0, np.uint32)
WriteIndex = Callable[[Path, np.dtype, np.ndarray], None]


@dataclass(frozen=True)
class Source:
    """A part of the dataset, and its dropped documents (positions, ascending)."""

    part: Part
    dropped: np.ndarray


def assemble(
    prefix: Path, dtype: np.dtype, shelf: str, sources: Sequence[Source], write: WriteIndex = write_index
) -> np.ndarray:
    """Write `prefix.bin` from the parts of one split and key in their order, then `prefix.idx`.

    Returns the number of tokens of each document, (documents,) int32.
    """
    lengths = [np.empty(0, "<i4")]
    with prefix.with_name(prefix.name + ".bin").open("wb") as out:
        for source in sources:
            with text.open_bytes(f"{shelf}/{source.part.lengths_file}") as file:
                each = np.frombuffer(file.readall() or b"", "<i4")
            with text.open_bytes(f"{shelf}/{source.part.tokens_file}") as tokens:
                for start, end in kept_ranges(each, source.dropped):
                    _append(out, tokens, start * dtype.itemsize, (end - start) * dtype.itemsize)
            kept_lengths = np.delete(each, source.dropped)
            lengths.append(kept_lengths[kept_lengths > 0])
        out.flush()
        os.fsync(out.fileno())
    all_lengths = np.concatenate(lengths)
    write(prefix.with_name(prefix.name + ".idx"), dtype, all_lengths)
    return all_lengths


def kept_ranges(lengths: np.ndarray, positions_dropped: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of tokens between the dropped documents: pure."""
    ends = np.cumsum(lengths, dtype=np.int64)
    start = 0
    for position in positions_dropped.tolist():
        end = int(ends[position])
        if (before := end - int(lengths[position])) > start:
            yield start, before
        start = end
    if len(ends) and start < ends[-1]:
        yield start, int(ends[-1])


def _append(out: BinaryIO, part: io.RawIOBase, start: int, size: int) -> None:
    """Copy within the kernel if the file system can (some share the blocks instead)."""
    part.seek(start)
    if isinstance(part, io.FileIO):
        out.flush()
        try:
            while size and (count := os.copy_file_range(part.fileno(), out.fileno(), min(size, _CHUNK), start)):
                start, size = start + count, size - count
            part.seek(start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        out.seek(0, os.SEEK_END)
    while size:
        data = part.read(min(size, _CHUNK))
        if not data:
            raise OSError(errno.EIO, "ends too early", getattr(part, "name", ""))
        out.write(data)
        size -= len(data)
