"""Datasets beside each other under --output-prefix, as Megatron's preprocess_data.py leaves them."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from everstep.steps.entry import Result, StepError, artifact
from everstep.steps.preprocess import inputs, vocabulary
from everstep.steps.preprocess.build import build, remote_shelf, vocabulary_of
from everstep.steps.preprocess.config import PAGE, Config
from everstep.steps.preprocess.destination import OutputPlace, output_place
from everstep.steps.preprocess.page import UNSPLIT
from everstep.steps.preprocess.shard import VALIDATION
from everstep.steps.preprocess.workspace import empty_shelf, shelf, workspace

VERSION = 2
"""Version of PREFIX_preprocess.json."""
SPLIT_NAME = UNSPLIT
"""It is also the last word of Megatron's file names."""
_UNRECORDED = (
    "tasks",
    "workers",
    "log_interval",
    "num_docs",
    "force",
    "spark_master",
    "executors",
    "executor_cores",
    "store",
    "run",
    "task",
    "outputs",
)
"""Parameters that do not change the output."""
Names = Mapping[tuple[str, str], str]
"""The common name of the two files of each split and key."""


def run(config: Config) -> Result:
    """Make PREFIX_<key>_document.bin and .idx, then PREFIX_preprocess.json, or find that they exist."""
    place, name = output_place(config.output_prefix)
    source = inputs.from_files(config.input, SPLIT_NAME, config.num_docs)
    settings = _settings(config, source)
    names = _names(config, name)
    seconds = 0.0
    record = _find_earlier(config, place, name, names, settings)
    if record is None:
        record, seconds = _make(config, source, place, name, names, settings)
    else:
        # Of a command that ended between its record and its last removal.
        empty_shelf(remote_shelf(config, place.uri, _digest(place, settings)))
    counts = [count for split in ("keys", VALIDATION) for count in record[split].values()]
    tokens = sum(count["tokens"] for count in counts)
    size = sum(count["bytes"] for count in counts)
    speed = f"  {size / 1e6 / seconds:.1f} MB/s" if seconds else ""
    rate = {"seconds": round(seconds, 3), "tokens_per_s": round(tokens / seconds)} if seconds else {}
    return Result(
        summary=f"{record['documents']} documents  {tokens / 1e6:.1f} M tokens{speed}",
        outputs={
            "uri": f"{place.uri}/{name}",
            "validation": f"{place.uri}/{name}_{VALIDATION}" * bool(record[VALIDATION]),
        },
        facts={**record, "tokens": tokens, **rate},
        artifacts={PAGE: artifact(config, PAGE, place.read(f"{name}_preprocess.html") or b"")},
    )


def _write_record(place: OutputPlace, name: str, record: Mapping[str, Any]) -> None:
    place.write(f"{name}_preprocess.json", (json.dumps(record, indent=1) + "\n").encode())


def _names(config: Config, name: str) -> Names:
    """The names of the files. Raises StepError for keys whose files would have the same name."""
    names = {(SPLIT_NAME, key): f"{name}_{key}_{SPLIT_NAME}" for key in config.keys}
    if config.validation_share:
        names |= {(VALIDATION, key): f"{name}_{VALIDATION}_{key}_{SPLIT_NAME}" for key in config.keys}
    if len(set(names.values())) < len(names):
        raise StepError(
            f"--jsonl-keys {config.jsonl_keys}: with --validation-share two keys' files would have the same names; "
            "use two commands"
        )
    return names


def _settings(config: Config, source: inputs.Input) -> dict[str, Any]:
    files = vocabulary.tokenizer_files(config)
    changing = {name: value for name, value in asdict(config).items() if name not in _UNRECORDED}
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return {**changing, "input_digest": source.digest, "tokenizer_digests": digests}


def _find_earlier(
    config: Config, place: OutputPlace, name: str, names: Names, settings: dict[str, Any]
) -> dict[str, Any] | None:
    """The record of an earlier command with the same output. Raises StepError for other files under these names."""
    record = f"{name}_preprocess.json"
    files = [f"{output}.{suffix}" for output in names.values() for suffix in ("bin", "idx")]
    existing_names = [name for name in (*files, record) if place.exists(name)]
    if not existing_names:
        return None
    if config.force:
        for name in (record, *reversed(files)):
            place.remove(name)
        return None
    try:
        earlier = json.loads(place.read(record) or b"")
        if earlier["settings"] == settings and "keys" not in earlier:
            return None  # a command for the same work was ended while its files got their names
        if earlier["settings"] == settings and set(files) < set(existing_names):
            print(f"{place.uri}/{record} shows that this is already done", file=sys.stderr)
            return earlier
    except (ValueError, KeyError, TypeError):
        pass
    raise StepError(
        f"--output-prefix {config.output_prefix}: {place.uri}/{existing_names[0]} exists, made from other input or "
        "settings; "
        "choose another prefix, or give --force to overwrite"
    )


def _digest(place: OutputPlace, settings: dict[str, Any]) -> str:
    """It names the work: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps([place.uri, settings]).encode()).hexdigest()[:16]


def _make(
    config: Config, source: inputs.Input, place: OutputPlace, name: str, names: Names, settings: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """The record of the output, and the seconds from the first byte read to the last written."""
    digest = _digest(place, settings)
    with (
        workspace(place.workspace(f"{name}-{digest}")) as folder,
        shelf(folder, remote_shelf(config, place.uri, digest)) as shelf_uri,
    ):
        words = vocabulary_of(config, source)
        outputs = {split_and_key: folder / output for split_and_key, output in names.items()}
        result_built = build(config, source, words, shelf_uri, outputs, config.output_prefix)
        began = time.monotonic()
        _write_record(place, name, {"version": VERSION, "settings": settings})
        for suffix in ("bin", "idx"):  # without its .idx nobody reads a .bin
            for output in names.values():
                place.publish(folder / f"{output}.{suffix}")
        seconds = result_built.seconds + time.monotonic() - began
        if not config.tokenizer_type and not vocabulary.tokenizer_files(config):
            place.write(f"{name}_tokenizer.json", words.json)
        place.write(f"{name}_preprocess.html", result_built.page.encode())
        counts = {
            split: {key: count for (own_split, key), count in result_built.counts.items() if own_split == split}
            for split in (SPLIT_NAME, VALIDATION)
        }
        splits = {"keys": counts[SPLIT_NAME], VALIDATION: counts[VALIDATION]}
        record = {"version": VERSION, **result_built.facts, **splits, "settings": settings}
        _write_record(place, name, record)
    return record, seconds
