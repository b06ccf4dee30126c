"""Shards to one indexed dataset: their tokens one after another, then the index."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from runtime.data import write_index
from steps.preprocess.shard import Written

_CHUNK = 64 << 20


def assemble(prefix: Path, dtype: np.dtype, shards: Sequence[Written]) -> None:
    """Write `prefix.bin` from the shards in their order, removing each, and `prefix.idx` last."""
    lengths = [np.empty(0, "<i4")]
    with prefix.with_name(prefix.name + ".bin").open("wb") as out:
        for shard in shards:
            with open(shard.tokens_file, "rb") as part:
                _append(out, part)
            lengths.append(np.fromfile(shard.lengths_file, "<i4"))
            Path(shard.tokens_file).unlink()
        out.flush()
        os.fsync(out.fileno())
    write_index(prefix.with_name(prefix.name + ".idx"), dtype, np.concatenate(lengths))


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
