"""What one Spark task does: read its byte ranges of the corpus, tokenize, write its shard. Runs in Spark's workers."""

import os
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from steps.preprocess.encoding import Encoder, plain_encoder, proven_encoder
from steps.preprocess.lines import texts
from steps.preprocess.plan import Shard

COUNTS = struct.Struct("<QQQ")
"""Documents, tokens and bytes of text so far: what a task's `.progress` file holds."""
_TELL_S = 0.25


@dataclass(frozen=True)
class Job:
    """What every task is told."""

    folder: str
    """Where shards are written."""
    tokenizer: str
    """Path of the tokenizer.json."""
    encoder: str
    """tiktoken or tokenizers, as proven by the driver."""
    eod: int | None
    dtype: str


@dataclass(frozen=True)
class Written:
    """What a task wrote, under the name of its attempt: several attempts of one shard do not meet."""

    shard: str
    tokens_file: str
    lengths_file: str
    documents: int
    tokens: int
    bytes: int


def write_shards(job: Job, planned: Iterable[Shard]) -> Iterator[Written]:
    """Tokenize what this task was given."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    encoder = _encoder(job.tokenizer, job.encoder)
    for shard in planned:
        yield write_shard(job, shard, encoder, attempt)


def write_shard(job: Job, shard: Shard, encoder: Encoder, attempt: int) -> Written:
    """One shard: `<name>.<attempt>.bin` with its tokens and `.lengths` with the tokens of each document (int32)."""
    base = Path(job.folder) / f"{shard.name}.{attempt}"
    files = base.with_name(base.name + ".bin"), base.with_name(base.name + ".lengths")
    end = [] if job.eod is None else [job.eod]
    documents = tokens = size = 0
    lengths: list[int] = []
    tell = time.monotonic() + _TELL_S
    with files[0].open("wb") as out, base.with_name(base.name + ".progress").open("wb", buffering=0) as progress:
        for piece in shard.pieces:
            for text in texts(piece.path, piece.start, piece.end):
                ids = encoder.encode(text)
                size += len(text.encode())
                if ids.size:
                    whole = np.concatenate([ids, end]) if end else ids
                    out.write(whole.astype(job.dtype).tobytes())
                    lengths.append(len(whole))
                    documents, tokens = documents + 1, tokens + len(whole)
                if time.monotonic() >= tell:
                    tell = time.monotonic() + _TELL_S
                    os.pwrite(progress.fileno(), COUNTS.pack(documents, tokens, size), 0)
        os.pwrite(progress.fileno(), COUNTS.pack(documents, tokens, size), 0)
    files[1].write_bytes(np.asarray(lengths, dtype="<i4").tobytes())
    return Written(shard.name, str(files[0]), str(files[1]), documents, tokens, size)


@lru_cache(maxsize=1)
def _encoder(tokenizer: str, name: str) -> Encoder:
    """Kept for the next task of this worker process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
    text = Path(tokenizer).read_text()
    return proven_encoder(text) if name == "tiktoken" else plain_encoder(text)
