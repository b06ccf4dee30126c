"""Datasets beside each other under --output-prefix, as Megatron's preprocess_data.py leaves them."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from everstep.steps.entry import Result, StepError, artifact
from everstep.steps.preprocess import inputs, vocabulary
from everstep.steps.preprocess.build import build, remote_shelf, vocabulary_of
from everstep.steps.preprocess.config import PAGE, Config
from everstep.steps.preprocess.destination import OutputPlace, output_place
from everstep.steps.preprocess.page import UNSPLIT
from everstep.steps.preprocess.shard import VALIDATION
from everstep.steps.preprocess.workspace import empty_shelf, made_by_another, shelf, workspace

VERSION = 2
"""Version of PREFIX_preprocess.json."""
SPLIT_NAME = UNSPLIT
"""It is also the last word of Megatron's file names."""
_RECORD = "_preprocess.json"
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
    if config.force:
        _remove_earlier(config, place, name)
    seconds = 0.0
    record = _find_earlier(config, place, name, settings)
    if record is None:
        try:
            record, seconds = _make(config, source, place, name, settings)
        except (OSError, StepError) as error:
            if config.force:
                raise
            record = made_by_another(error, lambda: _find_earlier(config, place, name, settings))
    if not seconds:
        # Left by a command that ended between its record and its last removal, or by this one.
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


def _encode_record(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode()


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


def _files(config: Config, name: str) -> list[str]:
    """What the command leaves besides its record and its page."""
    files = [f"{output}.{suffix}" for output in _names(config, name).values() for suffix in ("bin", "idx")]
    return [*files, f"{name}_tokenizer.json"] if _trains(config) else files


def _trains(config: Config) -> bool:
    return not (config.tokenizer or config.tokenizer_type)


def _remove_earlier(config: Config, place: OutputPlace, name: str) -> None:
    """Remove the files of this command, and those of an earlier one by its record; but no tokenizer that is given."""
    files, given = _files(config, name), {path.resolve() for path in vocabulary.tokenizer_files(config)}
    with suppress(ValueError, KeyError, TypeError):
        earlier = json.loads(place.read(f"{name}{_RECORD}") or b"")["settings"]
        deciding = ("jsonl_keys", "validation_share", "tokenizer", "tokenizer_type")
        files += _files(replace(config, **{field: earlier[field] for field in deciding}), name)
    for file in (f"{name}{_RECORD}", *reversed(files)):
        if Path(place.uri, file).resolve() not in given:
            place.remove(file)


def _find_earlier(config: Config, place: OutputPlace, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The record of another command with the same output. Raises StepError for other files under these names."""
    record, files = f"{name}{_RECORD}", _files(config, name)
    existing_names = [name for name in (*files, record) if place.exists(name)]
    if not existing_names:
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


def _claim(config: Config, place: OutputPlace, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Record that the files of this command get their names now.

    Returns the record of another command that was first, if it has done the same work. Raises StepError if it has not.
    """
    claim = _encode_record({"version": VERSION, "settings": settings})
    if config.force:
        place.write(f"{name}{_RECORD}", claim)
    elif not place.create(f"{name}{_RECORD}", claim):
        return _find_earlier(config, place, name, settings)
    return None


def _make(
    config: Config, source: inputs.Input, place: OutputPlace, name: str, settings: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """The record of the output, and the seconds from the first byte read to the last written; 0 if another command
    was first."""
    digest = _digest(place, settings)
    with (
        workspace(place.workspace(f"{name}-{digest}")) as folder,
        shelf(folder, remote_shelf(config, place.uri, digest)) as shelf_uri,
    ):
        names = _names(config, name)
        words = vocabulary_of(config, source)
        outputs = {split_and_key: folder / output for split_and_key, output in names.items()}
        result_built = build(config, source, words, shelf_uri, outputs, config.output_prefix)
        began = time.monotonic()
        if (other := _claim(config, place, name, settings)) is not None:
            return other, 0.0
        for suffix in ("bin", "idx"):  # without its .idx nobody reads a .bin
            for output in names.values():
                place.publish(folder / f"{output}.{suffix}")
        seconds = result_built.seconds + time.monotonic() - began
        if _trains(config):
            place.write(f"{name}_tokenizer.json", words.json)
        place.write(f"{name}_preprocess.html", result_built.page.encode())
        counts = {
            split: {key: count for (own_split, key), count in result_built.counts.items() if own_split == split}
            for split in (SPLIT_NAME, VALIDATION)
        }
        splits = {"keys": counts[SPLIT_NAME], VALIDATION: counts[VALIDATION]}
        record = {"version": VERSION, **result_built.facts, **splits, "settings": settings}
        place.write(f"{name}{_RECORD}", _encode_record(record))
    return record, seconds
