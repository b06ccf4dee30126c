"""The Spark job: planned shards, one task each; what they wrote, in order, and which documents came before."""

import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from runtime.text import Reader
from steps.entry import StepError
from steps.preprocess import progress
from steps.preprocess.cleaning import UNREADABLE
from steps.preprocess.config import Config
from steps.preprocess.encoding import How, Recipe, make_encoder
from steps.preprocess.inputs import Input, sample
from steps.preprocess.parts import Kept
from steps.preprocess.plan import Shard, shards, task_count
from steps.preprocess.shard import REFUSED, VALIDATION, Job, Refused, Written, write_shards
from steps.preprocess.vocabulary import Vocabulary
from steps.preprocess.workspace import opened

if TYPE_CHECKING:
    from pyspark import SparkContext

PROOF_BYTES = 1 << 20
"""Text of the input on which the fast encoder must give what the tokenizer gives."""
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Tokenized:
    """What Spark's job left."""

    written: list[Written]
    """In the order of the input."""
    later: dict[int, np.ndarray]
    """By their number in `splits_of(written)`: positions of documents whose texts came before."""
    seconds: float


def recipe(config: Config, given: Input, vocabulary: Vocabulary, shelf: str) -> Recipe:
    """How tasks encode: by the library that is fastest and right. They find the tokenizer beside their shards."""
    if vocabulary.encoding:
        return Recipe(How.ENCODING, vocabulary.encoding)
    if not vocabulary.json:
        return Recipe(How.BYTES)
    opened(shelf).put(TOKENIZER, vocabulary.json)
    split = next(iter(given.splits))
    texts = sample(given, split, Reader(config.keys, required=False, skip_bad=True), PROOF_BYTES)
    proven = make_encoder(vocabulary.json.decode(), texts, vocabulary.special)
    return Recipe(proven.how, f"{shelf}/{TOKENIZER}", vocabulary.special)


def master(config: Config) -> str:
    """Spark's master: the one that is given, or as many of its local processes as --workers says."""
    if not config.workers:
        return config.spark_master
    return f"local[{min(config.workers, cores(config.spark_master))}]"


def cores(local: str) -> int:
    """Python processes that a local master runs at a time."""
    inside = local.removeprefix("local").strip("[]")
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0)) if inside else 1


def plan(config: Config, given: Input) -> list[Shard]:
    """The shards of all splits, in order."""
    planned = []
    for split, extents in given.splits.items():
        count = config.tasks or task_count(given.size(split), cores(master(config)))
        planned += shards(split, extents, count)
    return planned


def tokenize(config: Config, given: Input, job: Job) -> Tokenized:
    """Run the planned shards on Spark. Raises StepError."""
    from steps.preprocess.session import SUBMITTED, failures, spark

    planned = plan(config, given)
    if not planned:
        return Tokenized([], {}, 1.0)
    place = "as spark-submit says" if SUBMITTED in os.environ else f"on {master(config)}"
    print(f"starting Spark {place}, tokenizing by {job.recipe.how.value}", file=sys.stderr)
    store = opened(job.uri)
    store.delete(REFUSED)
    if done := sum(entry.key.endswith(".done") for entry in store.list("")):
        print(f"{done} of {len(planned)} tasks were done by an earlier command", file=sys.stderr)
    total = progress.Total(given.documents, sum(map(given.size, given.splits)))
    with spark(master(config)) as context, failures(job.uri):
        started = time.monotonic()
        with progress.told(job.uri, total, config.log_interval):
            tasks = context.parallelize(planned, len(planned))
            results = tasks.mapPartitions(partial(write_shards, job)).collect()
        written = whole(config, results)
        later = _later(context, job, splits_of(written)) if job.cleaning.unique else {}
        seconds = time.monotonic() - started
    return Tokenized(written, later, seconds)


def splits_of(written: list[Written]) -> list[Kept]:
    """All splits of all shards, in order."""
    return [split for one in written for split in one.splits]


def _later(context: "SparkContext", job: Job, splits: list[Kept]) -> dict[int, np.ndarray]:
    from steps.preprocess.duplicates import Hashes, later_ones

    # What is trained on comes first: so nothing of it is left for validation.
    order = sorted(range(len(splits)), key=lambda number: splits[number].split == VALIDATION)
    hashed = ((at, splits[number]) for at, number in enumerate(order))
    found = later_ones(context, [Hashes(at, f"{job.uri}/{one.digests}", one.documents) for at, one in hashed])
    return {order[at]: positions for at, positions in found.items()}


def whole(config: Config, results: list[Written | Refused]) -> list[Written]:
    """What was written, if all was. Raises StepError for refused text and for a key that no document has."""
    written = [result for result in results if isinstance(result, Written)]
    for result in results:
        if isinstance(result, Refused):
            raise StepError(result.told)
    skipped = sum(result.dropped[UNREADABLE] for result in written)
    if skipped:
        print(f"{skipped} documents could not be read and were skipped", file=sys.stderr)
    for number, key in enumerate(config.keys):
        if written and not any(result.having[number] for result in written):
            raise StepError(f"--jsonl-keys {key}: no document of --input {config.input} has this key")
    return written
