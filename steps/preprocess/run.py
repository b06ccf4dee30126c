"""From a corpus to `<store>/datasets/<digest of corpus, tokenizer and settings>/`, made by Spark or found there."""

import hashlib
import json
import sys
from typing import Any

from everstep.runtime.data import data_folder
from everstep.runtime.store import is_s3_uri, local_copy_path, open_store
from everstep.steps.entry import Result, StepError, artifact
from everstep.steps.preprocess import inputs
from everstep.steps.preprocess.config import CLEANING, PAGE, Config

MANIFEST, TOKENIZER = "dataset.json", "tokenizer.json"
FORMAT = 3
"""Incremented when the same corpus and settings give another dataset than before."""


def run(config: Config) -> Result:
    """Make the dataset, or find that it exists. Raises StepError for an invalid input or tokenizer."""
    if not config.input:
        raise StepError(
            "--input is missing: give the folder that everstep.steps.corpus made, or files and --output-prefix"
        )
    if config.train_tokenizer:
        from everstep.steps.preprocess import tokenizer_training

        return tokenizer_training.run(config)
    if config.output_prefix:
        from everstep.steps.preprocess import prefix

        return prefix.run(config)
    corpus = inputs.open_corpus(config.input)
    digest = _digest(config, corpus)
    key = f"datasets/{digest}"
    meta = data_folder.find_manifest(config.store, key, MANIFEST)
    seconds = 0.0
    if meta is None:
        try:
            meta, seconds = _make(config, corpus, key)
        except (OSError, StepError) as error:
            from everstep.steps.preprocess.workspace import made_by_another

            meta = made_by_another(error, lambda: data_folder.find_manifest(config.store, key, MANIFEST))
    else:
        print(f"dataset {digest} is in the store already", file=sys.stderr)
    if not seconds:
        _remove_left_shards(config, key)
    tokens = meta["train"]["tokens"] + meta["validation"]["tokens"]
    uri = data_folder.data_uri(config.store, key)
    size = meta["train"]["bytes"] + meta["validation"]["bytes"]
    speed = f"  {size / 1e6 / seconds:.1f} MB/s" if seconds else ""
    rate = {"tokens_per_s": round(tokens / seconds)} if seconds else {}
    return Result(
        summary=f"{tokens / 1e6:.1f} M tokens{speed}",
        outputs={"uri": uri, "validation": f"{uri}#validation"},
        facts={**meta, "tokens": tokens, **rate},
        artifacts={PAGE: artifact(config, PAGE, open_store(config.store).get(f"{key}/{PAGE}"))},
    )


def _digest(config: Config, corpus: inputs.Corpus) -> str:
    """Digest of everything that changes the tokens, and of nothing else: 16 hexadecimal digits."""
    from everstep.steps.preprocess.tiktoken_tables import SUFFIX
    from everstep.steps.preprocess.vocabulary import tokenizer_files

    same = ("eod_token", "append_eod", "on_error", "jsonl_keys", "tokenizer_type", *CLEANING)
    parts: dict[str, Any] = {"format": FORMAT, **{name: getattr(config, name) for name in same}}
    parts["corpus"] = corpus.digest
    files = tokenizer_files(config)
    tokenizer_choice = config.vocab_file or config.vocab_size  # An encoding by its name; a size to train.
    identity = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    identity += [path.name for path in files if path.name.endswith(SUFFIX)]  # Two encodings may share a table.
    parts["tokenizer"] = identity or tokenizer_choice
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _remove_left_shards(config: Config, key: str) -> None:
    """Of a step that ended between the commit and its last removal."""
    if is_s3_uri(config.store):
        from everstep.steps.preprocess.build import remote_shelf
        from everstep.steps.preprocess.workspace import empty_shelf

        empty_shelf(remote_shelf(config, config.store, key))


def _make(config: Config, corpus: inputs.Corpus, key: str) -> tuple[dict[str, Any], float]:
    """The dataset and the seconds that Spark's job took."""
    from everstep.steps.preprocess.build import build, remote_shelf, vocabulary_of
    from everstep.steps.preprocess.workspace import shelf, workspace

    source = corpus.read()
    words = vocabulary_of(config, source)
    place = local_copy_path(data_folder.data_uri(config.store, key))
    shards = place.with_name(f"~shards-{place.name}")
    (text,) = config.keys
    with (
        workspace(shards) as work,
        shelf(work, remote_shelf(config, config.store, key)) as shelf_uri,
        data_folder.draft(config.store, key, MANIFEST) as draft,
    ):
        (draft.folder / TOKENIZER).write_bytes(words.json)
        outputs = {(split, text): draft.folder / split for split in inputs.SPLITS}
        result_built = build(config, source, words, shelf_uri, outputs, f"dataset {place.name}")
        (draft.folder / PAGE).write_text(result_built.page)
        splits = {split: {"prefix": split, **result_built.counts[split, text]} for split in inputs.SPLITS}
        meta = {"version": 1, **result_built.facts, **splits, "tokenizer": TOKENIZER, "corpus": corpus.name}
        draft.commit(meta)
    return meta, result_built.seconds
