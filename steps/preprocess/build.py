"""From planned shards to indexed datasets: run Spark's job, drop duplicates, join the files, collect the facts."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everstep.runtime.data import CACHED_DTYPE, token_dtype, write_cached_index, write_index
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import absolute_uri, is_s3_uri
from everstep.runtime.text import DocumentReader
from everstep.steps.entry import StepError
from everstep.steps.preprocess.assemble import NOTHING_DROPPED, Source, assemble
from everstep.steps.preprocess.cleaning import DUPLICATE, Cleaning, mend
from everstep.steps.preprocess.config import Config
from everstep.steps.preprocess.inputs import Input, sample
from everstep.steps.preprocess.job import TokenizedShards, recipe, splits_of, tokenize
from everstep.steps.preprocess.masters import Kind, kind_of
from everstep.steps.preprocess.page import Length, Page, render
from everstep.steps.preprocess.parts import Samples
from everstep.steps.preprocess.session import SUBMITTED
from everstep.steps.preprocess.shard import Job
from everstep.steps.preprocess.vocabulary import SAMPLE_BYTES, Vocabulary, load, train

Outputs = Mapping[tuple[str, str], Path]
"""Prefixes of the datasets, by split and key."""


@dataclass(frozen=True)
class BuildResult:
    """The result. Everything but `seconds` is the same for the same input and settings."""

    facts: dict[str, Any]
    counts: dict[tuple[str, str], dict[str, int]]
    """For each split and key: documents, tokens, bytes of text read, empty documents."""
    page: str
    """HTML."""
    seconds: float
    """From the first byte read to the last token written."""


def remote_shelf(config: Config, uri: str, name: str) -> str:
    """The S3 prefix for the tasks' shards, below the output's address; empty: a folder of the driver's."""
    alone = kind_of(config.spark_master) is Kind.LOCAL and SUBMITTED not in os.environ
    return "" if alone or not is_s3_uri(uri) else f"{absolute_uri(uri)}/shards/{name}"


def vocabulary_of(config: Config, source: Input) -> Vocabulary:
    """The tokenizer that the user gave, or one that is trained on the input. Raises StepError."""
    if config.tokenizer or config.tokenizer_type:
        return load(config)
    return train_vocabulary(config, source, config.vocab_size)


def train_vocabulary(config: Config, source: Input, size: int) -> Vocabulary:
    """Train a byte-level BPE on the input, which is read and cleaned as for its datasets. Raises StepError."""
    print(f"training a byte-level BPE of {size} tokens on the input", file=sys.stderr)
    reader = DocumentReader(config.keys, is_required=False, skip_bad=config.on_error == "skip")
    texts = sample(source, next(iter(source.splits)), reader, SAMPLE_BYTES)
    return train(mend(texts) if config.ftfy else texts, size, config.eod_token, config.append_eod)


def cleaning_of(config: Config) -> Cleaning:
    """The cleaning that the config asks for."""
    return Cleaning(config.ftfy, config.min_length, config.max_length, config.validation_share, config.deduplicate)


def build(config: Config, source: Input, words: Vocabulary, place: str, outputs: Outputs, title: str) -> BuildResult:
    """Make the datasets from shards at `place` (see `workspace.shelf`). Raises StepError."""
    dtype = token_dtype(words.size) if config.dataset_impl == "mmap" else CACHED_DTYPE
    rules = cleaning_of(config)
    with ThreadPoolExecutor(1) as pool:
        proving = pool.submit(recipe, config, source, words, place)  # while Spark starts

        def job() -> Job:
            return Job(place, config.keys, proving.result(), words.eod, dtype.str, rules, config.on_error == "skip")

        tokenized_shards = tokenize(config, source, place, job)
        encoder = proving.result()
        counts, lengths, seconds = _assemble(config, place, dtype, outputs, tokenized_shards)
    dropped_counts = {
        reason: sum(shard.dropped[reason] for shard in tokenized_shards.written)
        for reason in _reasons(tokenized_shards)
    }
    if rules.unique:
        dropped_counts[DUPLICATE] = sum(map(len, tokenized_shards.later.values()))
    facts = {
        "documents": sum(shard.read for shard in tokenized_shards.written),
        "dropped": dropped_counts,
        "mended": sum(shard.mended for shard in tokenized_shards.written),
        "dtype": dtype.name,
        "vocab_size": words.size,
        "eod": words.eod,
        "encoded_by": encoder.how.value,
    }
    samples = Samples()
    for shard in tokenized_shards.written:
        for text_sample in shard.samples:
            samples.take(text_sample)
    page = render(Page(title, config, facts, counts, lengths, samples.in_order()))
    return BuildResult(facts, counts, page, tokenized_shards.seconds + seconds)


def _reasons(tokenized_shards: TokenizedShards) -> list[str]:
    return list(tokenized_shards.written[0].dropped) if tokenized_shards.written else []


def _assemble(
    config: Config, place: str, dtype: np.dtype, outputs: Outputs, tokenized_shards: TokenizedShards
) -> tuple[dict[tuple[str, str], dict[str, int]], Sequence[Length], float]:
    began = time.monotonic()
    write = write_index if config.dataset_impl == "mmap" else write_cached_index
    counts, all_lengths = {}, []
    for (split, key), prefix in outputs.items():
        number = config.keys.index(key)
        parts_of_split = [
            (at, files) for at, files in enumerate(splits_of(tokenized_shards.written)) if files.split == split
        ]
        sources = [
            Source(files.parts[number], tokenized_shards.later.get(at, NOTHING_DROPPED)) for at, files in parts_of_split
        ]
        try:
            lengths = assemble(prefix, dtype, place, sources, write)
        except FileNotFoundError as error:
            what = f"{error.filename or error} (another run of the same work has removed it)"
            raise StepError(f"{what}; run the step again", ExitCode.TRY_AGAIN) from None
        except OSError as error:
            if error.errno:  # so that the error names a full disk; a store's error names its place
                error.filename = error.filename or str(prefix)
            raise
        parts = [source.part for source in sources]
        counts[split, key] = {
            "documents": len(lengths),
            "tokens": int(lengths.sum(dtype=np.int64)),
            "bytes": sum(part.bytes for part in parts),
            "empty": sum(part.having - part.documents for part in parts),
        }
        all_lengths.append(Length.of(split, key, lengths))
    return counts, all_lengths, time.monotonic() - began
