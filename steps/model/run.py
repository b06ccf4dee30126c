"""From a model's name to its address: a new model is put into the store, under its content's digest."""

import hashlib
import json
import sys
from typing import Any

from everstep.runtime.data import data_folder
from everstep.runtime.store import NoSuchKey, Store, StoreError, download, is_s3_uri
from everstep.steps.entry import Result, StepError, disk_error_code
from everstep.steps.model import directory, smollm2
from everstep.steps.model.config import Config
from everstep.steps.model.directory import MANIFEST, TINY

KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Files that are fetched: weights, configuration, tokenizer; not the same weights in other formats."""


def run(config: Config) -> Result:
    """Raises StepError for weights that cannot be read."""
    if config.model == TINY:
        return Result(f"{TINY}: random weights", {"uri": TINY, "tokenizer": config.tokenizer})
    if config.model == smollm2.NAME:
        uri, facts = _put_smollm2(config.store)
    elif is_s3_uri(config.model) and not directory.is_finished(config.model):
        uri, facts = _fetch_model(config)
    else:
        uri, facts = directory.absolute_address(config.model), {}
    return Result(
        f"{config.model}  {_size(directory.open_directory(uri)) / 1e6:.0f} MB",
        {"uri": uri, "tokenizer": config.tokenizer or (uri if directory.tokenizer_of(uri) is not None else "")},
        {**facts, "uri": uri},
    )


def _put_smollm2(store: str) -> tuple[str, dict[str, Any]]:
    file = smollm2.source()
    key = f"models/{smollm2.digest(file)}"
    facts = data_folder.find_manifest(store, key, MANIFEST)
    if facts is None:
        print(f"{file.name}: converted to float32, once", file=sys.stderr)
        with data_folder.draft(store, key, MANIFEST) as draft:
            facts = {"version": 1, "source": file.name, "parameters": smollm2.convert(file, draft.folder)}
            draft.commit(facts)
    return data_folder.data_uri(store, key), facts


def _fetch_model(config: Config) -> tuple[str, dict[str, Any]]:
    """Copy a model from somebody's bucket into the store; a changed bucket gives another model."""
    source = directory.open_directory(config.model)
    entries = [entry for entry in source.list("") if entry.key.endswith(KINDS) and "/" not in entry.key]
    source_names = [source.uri, *entries]
    key = f"models/{hashlib.sha256(json.dumps(source_names).encode()).hexdigest()[:16]}"
    facts = data_folder.find_manifest(config.store, key, MANIFEST)
    if facts is None:
        with data_folder.draft(config.store, key, MANIFEST) as draft:
            for entry in entries:
                print(f"{entry.key}: {entry.size / 1e6:.0f} MB", file=sys.stderr)
                try:
                    download(source, entry.key, entry.size, draft.folder / entry.key)
                except NoSuchKey as error:
                    raise StepError(f"--model {config.model}: {error}") from None
                except StoreError as error:
                    raise StepError(f"--model {config.model}: {error}", disk_error_code(error)) from None
            facts = {"version": 1, "source": source.uri}
            draft.commit(facts)
    return data_folder.data_uri(config.store, key), facts


def _size(store: Store) -> int:
    return sum(entry.size for entry in store.list("") if entry.key.endswith(".safetensors"))
