"""A Llama's files in Hugging Face's layout: a directory of this machine, or below an s3:// address.

Standard library only, so that steps can check before they start.
"""

import json
import os
from pathlib import Path
from typing import Any

from everstep.runtime.store import NoSuchKey, Store, StoreError, absolute_uri, fetch_folder, is_s3_uri, open_store
from everstep.steps.entry import StepError, disk_error_code

TINY = "tiny"
"""A model of about 5 million random weights that needs no files."""
TINY_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
"""Its Llama config, but for the vocabulary."""
MANIFEST = "everstep-model.json"
"""The last file of a finished model in the store."""


def check(model: str, sequence_length: int = 1) -> dict[str, Any]:
    """Read the config.json of a model that can be trained further.

    Raises StepError: no such place, no config, no weights, not a Llama, sequences too long.
    """
    if not model:
        raise StepError(f"--model is empty: give `{TINY}`, a directory of a Llama, or s3://...")
    try:
        store = open_directory(model)
        config = json.loads(store.get("config.json"))
        weights = any(entry.key.endswith(".safetensors") for entry in store.list(""))
    except NoSuchKey:
        raise StepError(f"--model {model}: no config.json in it; give a Hugging Face directory") from None
    except StoreError as error:
        raise StepError(f"--model {error}", disk_error_code(error)) from None
    except ValueError as error:
        raise StepError(f"--model {model}/config.json: not JSON ({error})") from None
    if not isinstance(config, dict) or config.get("model_type") != "llama":
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise StepError(f"--model {model}: a {kind or 'nameless'} model; only llama can be trained yet")
    if not weights:
        raise StepError(f"--model {model}: no weights in it (*.safetensors); download them, or use `{TINY}`")
    longest = int(config.get("max_position_embeddings", sequence_length))
    if sequence_length > longest:
        raise too_long(sequence_length, model, longest)
    return config


def too_long(sequence_length: int, model: str, longest: int) -> StepError:
    """The error for samples that the model cannot read."""
    return StepError(f"--sequence-length {sequence_length}: {model} reads at most {longest} tokens")


def check_finished(model: str, sequence_length: int = 1) -> dict[str, Any]:
    """The same for a model that workers will read: in S3 a step must have finished it. Raises StepError."""
    config = check(model, sequence_length)
    if is_s3_uri(model) and not is_finished(model):
        raise StepError(
            f"--model {model}: not in the store yet; `python -m everstep.steps.model --model {model}` puts it there"
        )
    return config


def is_finished(model: str) -> bool:
    """Has a step put the complete model there?"""
    try:
        open_directory(model).get(MANIFEST, 0, 0)
    except NoSuchKey:
        return False
    return True


def open_directory(model: str) -> Store:
    """A store with its files, for reading. Raises StepError for an unknown name."""
    if not is_s3_uri(model) and not os.path.isdir(model):
        raise StepError(
            f"--model {model}: neither `{TINY}` nor a directory; everstep.steps.model makes one of smollm2 and s3://"
        )
    return open_store(model, read_only=True)


def tokenizer_of(model: str) -> bytes | None:
    """The model's own tokenizer.json; None if it has none."""
    try:
        return open_directory(model).get("tokenizer.json")
    except NoSuchKey:
        return None


def absolute_address(model: str) -> str:
    """Its address, independent of the working directory."""
    return model if model == TINY else absolute_uri(model)


def fetch_model_folder(model: str) -> Path:
    """Its files on this machine, fetched if they are in S3. Raises NoSuchKey for an unfinished model, StoreError."""
    return fetch_folder(model, MANIFEST) if is_s3_uri(model) else Path(model)
