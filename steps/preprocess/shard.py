"""What one Spark task does: read its byte ranges, tokenize, write its shard. Runs in Spark's workers.

A shard's files carry the name of the attempt that writes them; `<shard>.done`, created once, says which attempt's
count. So attempts that run beside each other do not meet, and a later driver finds what is finished.
"""

import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from runtime import faults
from runtime.text import Reader, TextError
from steps.preprocess.encoding import Recipe, encoder
from steps.preprocess.plan import Shard

COUNTS = struct.Struct("<QQQQ")
"""Documents, tokens, bytes of text and stored bytes read so far: what a task's `.progress` file holds."""
_TELL_S = 0.25
_REFUSED = "refused"


@dataclass(frozen=True)
class Job:
    """What every task is told."""

    folder: str
    """Where shards are written."""
    keys: tuple[str, ...]
    recipe: Recipe
    eod: int | None
    dtype: str
    ftfy: bool = False
    skip_bad: bool = False


class Part(msgspec.Struct, frozen=True):
    """What was written of one key."""

    tokens_file: str
    lengths_file: str
    """Tokens of each document, int32."""
    documents: int
    tokens: int
    bytes: int
    """Of text, UTF-8."""
    having: int
    """Documents that have the key, those without a token too."""


class Written(msgspec.Struct, frozen=True):
    """What a task wrote, one part for each key of the job."""

    shard: str
    parts: tuple[Part, ...]
    read: int
    """Documents read."""
    skipped: int
    """Documents that could not be read."""


class Refused(msgspec.Struct, frozen=True):
    """Why a task cannot do its shard: the user's text, so another attempt would meet the same."""

    told: str


def write_shards(job: Job, planned: Iterable[Shard]) -> Iterator[Written | Refused]:
    """Tokenize what this task was given. When one task has refused its text, those that come later do nothing."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    refused = Path(job.folder) / _REFUSED
    for shard in planned:
        if refused.exists():
            return
        try:
            yield write_shard(job, shard, attempt)
        except TextError as error:
            refused.touch()
            yield Refused(str(error))


def write_shard(job: Job, shard: Shard, attempt: int) -> Written:
    """One shard: for each key a file of tokens and one of lengths. What is done already is not done again."""
    done = Path(job.folder) / f"{shard_key(shard)}.done"
    if (finished := _finished(done, job)) is not None:
        return finished
    base = done.with_name(f"{shard_key(shard)}.{attempt}")
    reader = Reader(job.keys, required=False, skip_bad=job.skip_bad)
    outputs = [_Output(base.with_name(f"{base.name}.{number}"), job) for number in range(len(job.keys))]
    fix = _fixer() if job.ftfy else None
    faults.point("preprocess.begun", shard=shard.name)
    read, tell = 0, time.monotonic() + _TELL_S
    with base.with_name(base.name + ".progress").open("wb", buffering=0) as progress:
        for piece in shard.pieces:
            for texts in reader.read(piece):
                read += 1
                for output, text in zip(outputs, texts, strict=True):
                    if text is not None:
                        output.add(fix(text) if fix else text)
                if time.monotonic() >= tell:
                    tell = time.monotonic() + _TELL_S
                    _tell(progress, read, outputs, reader)
        _tell(progress, read, outputs, reader)
    written = Written(shard.name, tuple(output.close() for output in outputs), read, reader.skipped)
    faults.point("preprocess.before_commit", shard=shard.name)
    written = _commit(done, base, written)
    faults.point("preprocess.after_commit", shard=shard.name)
    return written


def _finished(done: Path, job: Job) -> Written | None:
    """What an attempt has committed, unless its files were lost since (the machine may have gone down)."""
    try:
        written = msgspec.json.decode(done.read_bytes(), type=Written)
        for part in written.parts:
            sizes = os.stat(part.tokens_file).st_size, os.stat(part.lengths_file).st_size
            if sizes != (part.tokens * np.dtype(job.dtype).itemsize, part.documents * 4):
                raise FileNotFoundError
    except (FileNotFoundError, msgspec.DecodeError):
        done.unlink(missing_ok=True)
        return None
    return written


def shard_key(shard: Shard) -> str:
    """Name of a shard that tells it from one of another plan."""
    return f"{shard.name}-{hashlib.sha256(repr(shard.pieces).encode()).hexdigest()[:8]}"


class _Output:
    """The tokens of one key."""

    def __init__(self, base: Path, job: Job) -> None:
        self._encode = _encode(job.recipe)
        self._dtype = np.dtype(job.dtype)
        self._end = b"" if job.eod is None else self._dtype.type(job.eod).tobytes()
        self._longer = 0 if job.eod is None else 1
        self._tokens_file = base.with_name(base.name + ".bin")
        self._lengths_file = base.with_name(base.name + ".lengths")
        self._file = self._tokens_file.open("wb", buffering=1 << 20)
        self._lengths: list[int] = []
        self.having = self.tokens = self.bytes = 0

    def add(self, text: str) -> None:
        ids = self._encode(text)
        self.having += 1
        self.bytes += len(text) if text.isascii() else len(text.encode())
        if len(ids):
            self._file.write(ids.astype(self._dtype, copy=False).data)
            self._file.write(self._end)
            self._lengths.append(len(ids) + self._longer)
            self.tokens += len(ids) + self._longer

    def close(self) -> Part:
        self._file.close()
        self._lengths_file.write_bytes(np.asarray(self._lengths, dtype="<i4").tobytes())
        files = str(self._tokens_file), str(self._lengths_file)
        return Part(*files, len(self._lengths), self.tokens, self.bytes, self.having)


def _tell(progress: BinaryIO, read: int, outputs: list[_Output], reader: Reader) -> None:
    tokens, size = sum(output.tokens for output in outputs), sum(output.bytes for output in outputs)
    os.pwrite(progress.fileno(), COUNTS.pack(read, tokens, size, reader.consumed), 0)


def _commit(done: Path, base: Path, written: Written) -> Written:
    """Make this attempt's files the shard's, or take those of another attempt that was first."""
    own = base.with_name(base.name + ".told")
    own.write_bytes(msgspec.json.encode(written))
    try:
        os.link(own, done)
    except FileExistsError:
        for part in written.parts:
            os.unlink(part.tokens_file)
            os.unlink(part.lengths_file)
        written = msgspec.json.decode(done.read_bytes(), type=Written)
    own.unlink()
    return written


def _fixer() -> Callable[[str], str]:
    from ftfy import fix_text

    return fix_text


@lru_cache(maxsize=1)
def _encode(recipe: Recipe) -> Callable[[str], np.ndarray]:
    """Kept for the next task of this worker process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
    return encoder(recipe).encode
