"""Datasets beside each other under --output-prefix, as Megatron's preprocess_data.py leaves them."""

import hashlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from runtime.data import CACHED_DTYPE, token_dtype, write_cached_index, write_index
from runtime.text import Reader
from steps.entry import Result, StepError
from steps.preprocess import inputs, vocabulary
from steps.preprocess.assemble import assemble
from steps.preprocess.config import Config
from steps.preprocess.job import recipe, tokenize
from steps.preprocess.place import Place, place_of
from steps.preprocess.shard import Job, Written
from steps.preprocess.workspace import workspace

SPLIT = "document"
"""Files are read as one split; it is also the last word of Megatron's file names."""
_UNTOLD = ("tasks", "workers", "log_interval", "num_docs", "force", "spark_master", "store", "run", "task", "outputs")
"""Parameters that change nothing in the output."""


def run(config: Config) -> Result:
    """Make PREFIX_<key>_document.bin and .idx, PREFIX_preprocess.json last; or find that they are there."""
    place, name = place_of(config.output_prefix)
    given = inputs.files(config.input, SPLIT, config.num_docs)
    wanted = _settings(config, given)
    outputs = {key: f"{name}_{key}_{SPLIT}" for key in config.keys}
    seconds = 0.0
    told = _found(config, place, f"{name}_preprocess.json", outputs, wanted)
    if told is None:
        told, seconds = _make(config, given, place, name, outputs, wanted)
        place.write(f"{name}_preprocess.json", (json.dumps(told, indent=1) + "\n").encode())
    tokens = sum(key["tokens"] for key in told["keys"].values())
    size = sum(key["bytes"] for key in told["keys"].values())
    speed = f"  {size / 1e6 / seconds:.1f} MB/s" if seconds else ""
    return Result(
        summary=f"{told['documents']} documents  {tokens / 1e6:.1f} M tokens{speed}",
        outputs={"uri": f"{place.uri}/{name}", "validation": ""},
        facts={**told, "tokens": tokens, "seconds": round(seconds, 3)},
    )


def _settings(config: Config, given: inputs.Input) -> dict[str, Any]:
    files = vocabulary.tokenizer_files(config)
    changing = {name: value for name, value in asdict(config).items() if name not in _UNTOLD}
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return {**changing, "input_digest": given.digest, "tokenizer_digests": digests}


def _found(
    config: Config, place: Place, record: str, outputs: dict[str, str], wanted: dict[str, Any]
) -> dict[str, Any] | None:
    """What an earlier command told of the same output. Raises StepError for other files under these names."""
    files = [f"{output}.{suffix}" for output in outputs.values() for suffix in ("bin", "idx")]
    there = [name for name in (*files, record) if place.exists(name)]
    if not there:
        return None
    if config.force:
        for name in (record, *reversed(files)):
            place.remove(name)
        return None
    try:
        told = json.loads(place.read(record) or b"")
        if told["settings"] == wanted and set(files) < set(there):
            print(f"{place.uri}/{record} says that this is done already", file=sys.stderr)
            return told
    except (ValueError, KeyError, TypeError):
        pass
    raise StepError(
        f"--output-prefix {config.output_prefix}: {place.uri}/{there[0]} is there, made from other input or settings; "
        "choose another prefix, or give --force to overwrite"
    )


def _make(
    config: Config, given: inputs.Input, place: Place, name: str, outputs: dict[str, str], wanted: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """What to tell of the output, and the seconds from the first byte read to the last written."""
    digest = hashlib.sha256(json.dumps([place.uri, wanted]).encode()).hexdigest()[:16]
    with workspace(place.workspace(f"{name}-{digest}")) as folder:
        words = _vocabulary(config, given)
        dtype = token_dtype(words.size) if config.dataset_impl == "mmap" else CACHED_DTYPE
        tokenizer_json = folder / "tokenizer.json"
        tokenizer_json.write_bytes(words.json)
        made = recipe(config, given, words, tokenizer_json)
        job = Job(str(folder), config.keys, made, words.eod, dtype.str, config.ftfy, config.on_error == "skip")
        written, seconds = tokenize(config, given, job)
        started = time.monotonic()
        told = _assemble(config, folder, outputs, dtype, written)
        for suffix in ("bin", "idx"):  # without its .idx nobody reads a .bin
            for output in outputs.values():
                place.publish(folder / f"{output}.{suffix}")
        seconds += time.monotonic() - started
        if words.json and not vocabulary.tokenizer_files(config):
            place.write(f"{name}_tokenizer.json", words.json)
    facts = {"dtype": dtype.name, "vocab_size": words.size, "eod": words.eod, "encoded_by": made.how.value}
    return {"version": 1, **told, **facts, "settings": wanted}, seconds


def _vocabulary(config: Config, given: inputs.Input) -> vocabulary.Vocabulary:
    if config.tokenizer or config.tokenizer_type:
        return vocabulary.load(config)
    reader = Reader(config.keys, required=False, skip_bad=config.on_error == "skip")
    texts = inputs.sample(given, SPLIT, reader, vocabulary.SAMPLE_BYTES)
    return vocabulary.train(texts, config.vocab_size, config.eod_token, config.append_eod)


def _assemble(
    config: Config, folder: Path, outputs: dict[str, str], dtype: np.dtype, written: list[Written]
) -> dict[str, Any]:
    """Whole files in the workspace."""
    write = write_index if config.dataset_impl == "mmap" else write_cached_index
    keys = {}
    for number, (key, output) in enumerate(outputs.items()):
        parts = [result.parts[number] for result in written]
        assemble(folder / output, dtype, parts, write)
        keys[key] = {
            "documents": sum(part.documents for part in parts),
            "tokens": sum(part.tokens for part in parts),
            "bytes": sum(part.bytes for part in parts),
            "empty": sum(part.having - part.documents for part in parts),
        }
    read, skipped = sum(result.read for result in written), sum(result.skipped for result in written)
    return {"documents": read, "skipped": skipped, "keys": keys}
