"""What one Spark task does: read its byte ranges, clean, tokenize, write its shard. Runs in Spark's workers.

A shard's files carry the name of the attempt that writes them; `<shard>.done`, created once, says which attempt counts.
So concurrent attempts do not collide, and a later driver finds finished shards. If the work is in an S3 store, files
are written on the task's machine and uploaded when they are complete.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from everstep.runtime import faults
from everstep.runtime.store import NoSuchKey, Store, is_s3_uri
from everstep.runtime.text import DocumentReader, TextError
from everstep.steps.preprocess.cleaning import HASH_BYTES, NO_CLEANING, UNREADABLE, Cleaner, Cleaning
from everstep.steps.preprocess.encoding import Recipe, encoder
from everstep.steps.preprocess.parts import Sample, Samples, Split, SplitFiles
from everstep.steps.preprocess.plan import Shard
from everstep.steps.preprocess.workspace import ShardProgress, open_shelf, scratch_folder

VALIDATION = "validation"
"""The split of documents that are held out."""
REFUSAL_KEY = "refused"
"""Key of the reason why a text was refused, for the driver: the task that met it may be lost before it answers."""


@dataclass(frozen=True)
class Job:
    """What every task receives."""

    uri: str
    """Where shards are written: a folder, or a prefix of an S3 store."""
    keys: tuple[str, ...]
    recipe: Recipe
    eod: int | None
    dtype: str
    cleaning: Cleaning = NO_CLEANING
    skip_bad: bool = False


class ShardResult(msgspec.Struct, frozen=True):
    """What a task wrote."""

    shard: str
    splits: tuple[SplitFiles, ...]
    """The shard's own split first."""
    read: int
    """Documents read."""
    having: tuple[int, ...]
    """For each key, documents that have it."""
    mended: int
    """Documents that ftfy changed."""
    dropped: dict[str, int]
    """Dropped documents, by reason."""
    samples: tuple[Sample, ...]
    began: float
    """When its first byte was read, Unix time."""


class ShardRefusal(msgspec.Struct, frozen=True):
    """Why a task cannot do its shard. The user's text is the reason, so another attempt would fail, too."""

    reason: str


def write_shards(job: Job, planned_shards: Iterable[Shard]) -> Iterator[ShardResult | ShardRefusal]:
    """Tokenize this task's shards. Once a task has refused its text, later tasks do nothing."""
    from pyspark import TaskContext

    context, store = TaskContext.get(), open_shelf(job.uri)
    attempt = context.taskAttemptId() if context else 0
    for shard in planned_shards:
        if any(store.list(REFUSAL_KEY)):
            return
        try:
            yield write_shard(job, shard, attempt)
        except TextError as error:
            store.create(REFUSAL_KEY, str(error).encode())
            yield ShardRefusal(str(error))


def write_shard(job: Job, shard: Shard, attempt: int) -> ShardResult:
    """One shard: for each split and key a file of tokens and one of lengths. A finished shard is not done again."""
    store = open_shelf(job.uri)
    if (committed_shard := _read_committed(store, job, shard)) is not None:
        return committed_shard
    name = f"{shard_key(shard)}.{attempt}-{os.urandom(4).hex()}"
    with scratch_folder(job.uri) as folder:
        shard_result = _write(job, shard, folder / name, ShardProgress(job.uri, f"{shard_key(shard)}.progress"))
        faults.point("preprocess.before_commit", shard=shard.name)
        shard_result = _commit(store, job, shard, folder, shard_result)
    faults.point("preprocess.after_commit", shard=shard.name)
    return shard_result


def _write(job: Job, shard: Shard, base: Path, teller: ShardProgress) -> ShardResult:
    reader = DocumentReader(job.keys, is_required=False, skip_bad=job.skip_bad)
    cleaner, samples, encode = Cleaner(job.cleaning, len(job.keys)), Samples(), _encoder(job.recipe)
    names = [shard.split] if not job.cleaning.held_out or shard.split == VALIDATION else [shard.split, VALIDATION]
    splits = [
        Split(
            name, base.with_name(f"{base.name}.{name}"), len(job.keys), encode, job.dtype, job.eod, job.cleaning.unique
        )
        for name in names
    ]
    faults.point("preprocess.begun", shard=shard.name)
    read, began = 0, time.time()
    for piece in shard.pieces:
        for texts in reader.read(piece):
            read += 1
            document = cleaner.clean(texts)
            if document is not None:
                splits[document.held_out and len(splits) > 1].add(document.texts, document.digest)
                samples.add(document)
            if teller.is_due():
                teller.report(read, *_totals(splits), reader.consumed_bytes)
    teller.report(read, *_totals(splits), reader.consumed_bytes)
    dropped_counts = {UNREADABLE: reader.skipped, **cleaner.dropped}
    split_files = tuple(split.close() for split in splits)
    return ShardResult(
        shard.name, split_files, read, tuple(cleaner.having), cleaner.mended, dropped_counts, samples.in_order(), began
    )


def _totals(splits: list[Split]) -> tuple[int, int]:
    tokens, size = zip(*(split.totals() for split in splits), strict=True)
    return sum(tokens), sum(size)


def shard_key(shard: Shard) -> str:
    """A shard's name, distinct from the names in another plan."""
    return f"{shard.name}-{hashlib.sha256(repr(shard.pieces).encode()).hexdigest()[:8]}"


def _commit_key(shard: Shard) -> str:
    return f"{shard_key(shard)}.done"


def _read_committed(store: Store, job: Job, shard: Shard) -> ShardResult | None:
    """What an attempt has committed, unless its files were lost since: the machine may have gone down, another
    driver of the same work may have removed them."""
    try:
        shard_result = msgspec.json.decode(store.get(_commit_key(shard)), type=ShardResult)
    except NoSuchKey:
        return None
    except msgspec.DecodeError:
        whole = False
    else:
        sizes = _file_sizes(store, job, shard, shard_result)
        whole = all(_has_files(sizes, split_files, job) for split_files in shard_result.splits)
    if whole:
        return shard_result
    store.delete(_commit_key(shard))
    return None


def _file_sizes(store: Store, job: Job, shard: Shard, shard_result: ShardResult) -> Mapping[str, int]:
    """The files of that result that exist."""
    if is_s3_uri(job.uri):
        return {entry.key: entry.size for entry in store.list(f"{shard_key(shard)}.")}
    paths = [Path(job.uri, name) for split_files in shard_result.splits for name in split_files.files()]
    return {path.name: path.stat().st_size for path in paths if path.is_file()}


def _has_files(sizes: Mapping[str, int], split_files: SplitFiles, job: Job) -> bool:
    expected = [(split_files.digests, split_files.documents * HASH_BYTES)] if split_files.digests else []
    for part in split_files.parts:
        expected += [(part.tokens_file, part.tokens * np.dtype(job.dtype).itemsize)]
        expected += [(part.lengths_file, split_files.documents * 4)]
    return all(sizes.get(name) == size for name, size in expected)


def _commit(store: Store, job: Job, shard: Shard, folder: Path, shard_result: ShardResult) -> ShardResult:
    """Make this attempt's files the shard's; if another attempt was first and its files exist, return those."""
    names = [name for split_files in shard_result.splits for name in split_files.files()]
    if is_s3_uri(job.uri):
        for name in names:
            store.put(name, folder / name)
    while not store.create(_commit_key(shard), msgspec.json.encode(shard_result)):
        if (first := _read_committed(store, job, shard)) is not None:
            for name in names:
                store.delete(name)
            return first
    return shard_result


@lru_cache(maxsize=1)
def _encoder(recipe: Recipe) -> Callable[[str], np.ndarray]:
    """The encoder, kept for the next task of this worker process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
    return encoder(recipe).encode
