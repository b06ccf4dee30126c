"""From planned shards to indexed datasets: Spark's job, duplicates out, files together, and what there is to tell."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.data import CACHED_DTYPE, token_dtype, write_cached_index, write_index
from steps.preprocess.assemble import NONE, Source, assemble
from steps.preprocess.cleaning import DUPLICATE, Cleaning
from steps.preprocess.config import Config
from steps.preprocess.inputs import Input
from steps.preprocess.job import Tokenized, recipe, splits_of, tokenize
from steps.preprocess.page import Length, Page, render
from steps.preprocess.parts import Samples
from steps.preprocess.shard import Job
from steps.preprocess.vocabulary import Vocabulary
from steps.preprocess.workspace import shelf

Outputs = Mapping[tuple[str, str], Path]
"""Prefixes of the datasets, by split and key."""


@dataclass(frozen=True)
class Built:
    """What was made. Everything but `seconds` is the same whenever the same is made again."""

    facts: dict[str, Any]
    counts: dict[tuple[str, str], dict[str, int]]
    """Of each split and key: documents, tokens, bytes of text read, empty documents."""
    page: str
    """HTML."""
    seconds: float
    """From the first byte read to the last token written."""


def cleaning(config: Config) -> Cleaning:
    """What is asked for."""
    return Cleaning(config.ftfy, config.min_length, config.max_length, config.validation_share, config.deduplicate)


def build(
    config: Config, given: Input, words: Vocabulary, folder: Path, elsewhere: str, outputs: Outputs, title: str
) -> Built:
    """Make the datasets. Shards are put into `folder`, or `elsewhere` if that is not empty. Raises StepError."""
    dtype = token_dtype(words.size) if config.dataset_impl == "mmap" else CACHED_DTYPE
    with shelf(folder, elsewhere) as place:
        made = recipe(config, given, words, place)
        asked = cleaning(config)
        job = Job(place, config.keys, made, words.eod, dtype.str, asked, config.on_error == "skip")
        done = tokenize(config, given, job)
        counts, lengths, seconds = _assemble(config, place, dtype, outputs, done)
    dropped = {reason: sum(one.dropped[reason] for one in done.written) for reason in _reasons(done)}
    if asked.unique:
        dropped[DUPLICATE] = sum(map(len, done.later.values()))
    facts = {
        "documents": sum(one.read for one in done.written),
        "dropped": dropped,
        "mended": sum(one.mended for one in done.written),
        "dtype": dtype.name,
        "vocab_size": words.size,
        "eod": words.eod,
        "encoded_by": made.how.value,
    }
    samples = Samples()
    for one in done.written:
        for sample in one.samples:
            samples.take(sample)
    page = render(Page(title, config, facts, counts, lengths, samples.chosen()))
    return Built(facts, counts, page, done.seconds + seconds)


def _reasons(done: Tokenized) -> list[str]:
    return list(done.written[0].dropped) if done.written else []


def _assemble(
    config: Config, place: str, dtype: np.dtype, outputs: Outputs, done: Tokenized
) -> tuple[dict[tuple[str, str], dict[str, int]], Sequence[Length], float]:
    started = time.monotonic()
    write = write_index if config.dataset_impl == "mmap" else write_cached_index
    counts, all_lengths = {}, []
    for (split, key), prefix in outputs.items():
        number = config.keys.index(key)
        kept = [(at, one) for at, one in enumerate(splits_of(done.written)) if one.split == split]
        sources = [Source(one.parts[number], done.later.get(at, NONE)) for at, one in kept]
        lengths = assemble(prefix, dtype, place, sources, write)
        parts = [source.part for source in sources]
        counts[split, key] = {
            "documents": len(lengths),
            "tokens": int(lengths.sum(dtype=np.int64)),
            "bytes": sum(part.bytes for part in parts),
            "empty": sum(part.having - part.documents for part in parts),
        }
        all_lengths.append(Length.of(split, key, lengths))
    return counts, all_lengths, time.monotonic() - started
