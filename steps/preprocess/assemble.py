"""Shards to one indexed dataset: their tokens one after another, then the index."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from runtime.data import write_index
from steps.preprocess.shard import Part

_CHUNK = 64 << 20
WriteIndex = Callable[[Path, np.dtype, np.ndarray], None]


def assemble(prefix: Path, dtype: np.dtype, parts: Sequence[Part], write: WriteIndex = write_index) -> None:
    """Write `prefix.bin` from the parts of one key in their order and `prefix.idx` last."""
    lengths = [np.empty(0, "<i4")]
    with prefix.with_name(prefix.name + ".bin").open("wb") as out:
        for part in parts:
            with open(part.tokens_file, "rb") as tokens:
                _append(out, tokens)
            lengths.append(np.fromfile(part.lengths_file, "<i4"))
        out.flush()
        os.fsync(out.fileno())
    write(prefix.with_name(prefix.name + ".idx"), dtype, np.concatenate(lengths))


def _append(out: BinaryIO, part: BinaryIO) -> None:
    """Copy within the kernel where the file system can (some share the blocks instead)."""
    try:
        while os.copy_file_range(part.fileno(), out.fileno(), _CHUNK):
            pass
    except OSError as error:
        import errno

        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        shutil.copyfileobj(part, out, _CHUNK)
