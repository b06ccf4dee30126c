"""The Spark job: planned shards, one task each; what they wrote, in order."""

import os
import sys
import time
from functools import partial
from pathlib import Path

from runtime.text import Reader
from steps.entry import StepError
from steps.preprocess import progress
from steps.preprocess.config import Config
from steps.preprocess.encoding import How, Recipe, make_encoder
from steps.preprocess.inputs import Input, sample
from steps.preprocess.plan import Shard, shards, task_count
from steps.preprocess.shard import Job, Refused, Written, write_shards
from steps.preprocess.vocabulary import Vocabulary

PROOF_BYTES = 1 << 20
"""Text of the input on which the fast encoder must give what the tokenizer gives."""


def recipe(config: Config, given: Input, vocabulary: Vocabulary, tokenizer_json: Path) -> Recipe:
    """How tasks encode: by the library that is fastest and right. `tokenizer_json` is where they find the tokenizer."""
    if vocabulary.encoding:
        return Recipe(How.ENCODING, vocabulary.encoding)
    if not vocabulary.json:
        return Recipe(How.BYTES)
    split = next(iter(given.splits))
    texts = sample(given, split, Reader(config.keys, required=False, skip_bad=True), PROOF_BYTES)
    proven = make_encoder(vocabulary.json.decode(), texts, vocabulary.special)
    return Recipe(proven.how, str(tokenizer_json), vocabulary.special)


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


def tokenize(config: Config, given: Input, job: Job) -> tuple[list[Written], float]:
    """Run the planned shards on Spark; what they wrote, in order, and the seconds that took. Raises StepError."""
    from steps.preprocess.session import SUBMITTED, failures, spark

    planned = plan(config, given)
    if not planned:
        return [], 1.0
    place = "as spark-submit says" if SUBMITTED in os.environ else f"on {master(config)}"
    print(f"starting Spark {place}, tokenizing by {job.recipe.how.value}", file=sys.stderr)
    if done := len(list(Path(job.folder).glob("*.done"))):
        print(f"{done} of {len(planned)} tasks were done by an earlier command", file=sys.stderr)
    total = progress.Total(given.documents, sum(map(given.size, given.splits)))
    with spark(master(config)) as context, failures(job.folder):
        started = time.monotonic()
        with progress.told(Path(job.folder), total, config.log_interval):
            tasks = context.parallelize(planned, len(planned))
            results = tasks.mapPartitions(partial(write_shards, job)).collect()
        seconds = time.monotonic() - started
    return whole(config, results), seconds


def whole(config: Config, results: list[Written | Refused]) -> list[Written]:
    """What was written, if all was. Raises StepError for refused text and for a key that no document has."""
    written = [result for result in results if isinstance(result, Written)]
    for result in results:
        if isinstance(result, Refused):
            raise StepError(result.told)
    skipped = sum(result.skipped for result in written)
    if skipped:
        print(f"{skipped} documents could not be read and were skipped", file=sys.stderr)
    for number, key in enumerate(config.keys):
        if written and not any(result.parts[number].having for result in written):
            raise StepError(f"--jsonl-keys {key}: no document of --input {config.input} has this key")
    return written
