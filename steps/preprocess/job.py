"""The Spark job: one task per planned shard. Returns what they wrote, in order, and the repeated documents."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import NoSuchKey, Store, is_s3_uri
from everstep.runtime.text import DocumentReader
from everstep.steps.entry import StepError
from everstep.steps.preprocess import progress
from everstep.steps.preprocess.cleaning import UNREADABLE
from everstep.steps.preprocess.config import Config
from everstep.steps.preprocess.encoding import EncodingMethod, Recipe, make_encoder
from everstep.steps.preprocess.inputs import Input, sample
from everstep.steps.preprocess.masters import Kind, kind_of, local_cores
from everstep.steps.preprocess.parts import SplitFiles
from everstep.steps.preprocess.plan import Shard, shards, task_count
from everstep.steps.preprocess.shard import REFUSAL_KEY, VALIDATION, Job, ShardRefusal, ShardResult, write_shards
from everstep.steps.preprocess.tiktoken_tables import SUFFIX
from everstep.steps.preprocess.vocabulary import Vocabulary
from everstep.steps.preprocess.workspace import open_shelf

if TYPE_CHECKING:
    from pyspark import SparkContext

PROOF_BYTES = 1 << 20
"""Bytes of input text on which the fast encoder must agree with the tokenizer."""
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class TokenizedShards:
    """The result of Spark's job."""

    written: list[ShardResult]
    """In the order of the input."""
    later: dict[int, np.ndarray]
    """Positions of documents whose texts came before, by number in `splits_of(written)`."""
    seconds: float
    """Since the first byte was read."""


def recipe(config: Config, source: Input, vocabulary: Vocabulary, shelf: str) -> Recipe:
    """How tasks encode: with the fastest library that is exact. They find the tokenizer beside their shards."""
    if vocabulary.is_bytes:
        return Recipe(EncodingMethod.BYTES)
    if vocabulary.encoding.endswith(SUFFIX):
        table = Path(vocabulary.encoding)
        open_shelf(shelf).put(table.name, table.read_bytes())
        return Recipe(EncodingMethod.ENCODING, f"{shelf}/{table.name}")
    if vocabulary.encoding:
        return Recipe(EncodingMethod.ENCODING, vocabulary.encoding)
    open_shelf(shelf).put(TOKENIZER, vocabulary.json)
    split = next(iter(source.splits))
    texts = sample(source, split, DocumentReader(config.keys, is_required=False, skip_bad=True), PROOF_BYTES)
    proven = make_encoder(vocabulary.json.decode(), texts, vocabulary.special)
    return Recipe(proven.how, f"{shelf}/{TOKENIZER}", vocabulary.special)


def cores(config: Config) -> int:
    """Python processes that run at a time."""
    is_local = kind_of(config.spark_master) is Kind.LOCAL
    most = local_cores(config.spark_master) if is_local else config.executors * config.executor_cores
    return min(config.workers or most, most)


def plan(config: Config, source: Input) -> list[Shard]:
    """The shards of all splits, in order."""
    planned_shards = []
    for split, extents in source.splits.items():
        count = config.tasks or task_count(source.size(split), cores(config))
        planned_shards += shards(split, extents, count)
    return planned_shards


def tokenize(config: Config, source: Input, shelf: str, make_job: Callable[[], Job]) -> TokenizedShards:
    """Run the planned shards on Spark. `make_job` is called with the job when Spark has started. Raises StepError."""
    from everstep.steps.preprocess.session import SUBMITTED, explain_failures, spark

    planned_shards = plan(config, source)
    if not planned_shards:
        return TokenizedShards([], {}, 1.0)
    place = "as spark-submit says" if SUBMITTED in os.environ else f"on {config.spark_master}"
    print(f"starting Spark {place}", file=sys.stderr)
    store = open_shelf(shelf)
    store.delete(REFUSAL_KEY)
    if done_count := sum(entry.key.endswith(".done") for entry in store.list("")):
        print(f"{done_count} of {len(planned_shards)} tasks were already done by an earlier command", file=sys.stderr)
    total = progress.Total(source.documents, sum(map(source.size, source.splits)))
    with spark(config.spark_master, cores(config), config.executor_cores) as context, explain_failures(shelf):
        job = make_job()
        print(f"tokenizing by {job.recipe.how.value}, {len(planned_shards)} tasks", file=sys.stderr)
        began = time.time()
        with progress.show_progress(shelf, total, config.log_interval):
            tasks = context.parallelize(planned_shards, len(planned_shards))
            results = tasks.mapPartitions(partial(write_shards, job)).collect()
        require_all(planned_shards, results, store)
        shard_results = complete_results(config, results)
        refuse_far_shards(job, shard_results)
        later = _duplicates(context, job, splits_of(shard_results)) if job.cleaning.unique else {}
        seconds = time.time() - first_read_time(began, shard_results)
    return TokenizedShards(shard_results, later, seconds)


def first_read_time(began: float, shard_results: list[ShardResult]) -> float:
    """When this command's tasks began to read; when it started, if an earlier command had done all of them."""
    return min((shard.began for shard in shard_results if shard.began >= began), default=began)


def require_all(planned_shards: list[Shard], results: list[ShardResult | ShardRefusal], store: Store) -> None:
    """Raises StepError if tasks skipped their shards because another refused its text, and that refusal was lost."""
    if len(results) == len(planned_shards) or any(isinstance(result, ShardRefusal) for result in results):
        return
    try:
        refusal = store.get(REFUSAL_KEY).decode()
    except NoSuchKey:
        missing = len(planned_shards) - len(results)
        raise StepError(
            f"{missing} of {len(planned_shards)} tasks left no output; run the step again", code=ExitCode.TRY_AGAIN
        ) from None
    raise StepError(refusal)


def refuse_far_shards(job: Job, shard_results: list[ShardResult]) -> None:
    """Raises StepError for shards that executors on other machines have written to their own folder."""
    names = () if is_s3_uri(job.uri) else (name for split in splits_of(shard_results) for name in split.files())
    if far := next((name for name in names if not Path(job.uri, name).is_file()), ""):
        raise StepError(
            f"{job.uri}/{far}: not here; Spark's executors do not share this folder with the driver: "
            "give --input and the output in s3://"
        )


def splits_of(shard_results: list[ShardResult]) -> list[SplitFiles]:
    """All splits of all shards, in order."""
    return [split for shard in shard_results for split in shard.splits]


def _duplicates(context: "SparkContext", job: Job, splits: list[SplitFiles]) -> dict[int, np.ndarray]:
    from everstep.steps.preprocess.duplicates import Hashes, find_duplicates

    # The training split comes first, so that validation contains no repetition of it.
    order = sorted(range(len(splits)), key=lambda number: splits[number].split == VALIDATION)
    hash_slices = ((at, splits[number]) for at, number in enumerate(order))
    duplicates = find_duplicates(
        context, [Hashes(at, f"{job.uri}/{files.digests}", files.documents) for at, files in hash_slices]
    )
    return {order[at]: positions for at, positions in duplicates.items()}


def complete_results(config: Config, results: list[ShardResult | ShardRefusal]) -> list[ShardResult]:
    """What was written, if complete. Raises StepError for refused text and for a key that no document has."""
    shard_results = [result for result in results if isinstance(result, ShardResult)]
    for result in results:
        if isinstance(result, ShardRefusal):
            raise StepError(result.reason)
    skipped_count = sum(result.dropped[UNREADABLE] for result in shard_results)
    if skipped_count:
        print(f"{skipped_count} documents could not be read and were skipped", file=sys.stderr)
    for number, key in enumerate(config.keys):
        if shard_results and not any(result.having[number] for result in shard_results):
            raise StepError(f"--jsonl-keys {key}: no document of --input {config.input} has this key")
    return shard_results
