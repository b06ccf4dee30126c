"""Find a tokenizer.json, and count its tokens: the standard library alone, so steps can check before they start."""

import json
import os
from pathlib import Path
from typing import Any

from everstep.runtime.store import NoSuchKey, StoreError, fetch_folder, is_s3_uri
from everstep.steps.entry import StepError, disk_error_code
from everstep.steps.model.directory import MANIFEST

TRAINED_SIZE = 8192
"""Tokens of a tokenizer that is trained because none is given, unless a size is."""


def vocabulary_size(content: bytes) -> int:
    """The largest token id plus one. Raises ValueError for what is not a tokenizer.json.

    A vocabulary is a mapping from tokens to ids (BPE, WordPiece, WordLevel) or a list in the order of ids (Unigram).
    Source: Hugging Face tokenizers, the models' serialization.
    """
    try:
        value: Any = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    model = value.get("model") if isinstance(value, dict) else None
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    vocabulary, added_tokens = model.get("vocab"), value.get("added_tokens") or []
    if isinstance(vocabulary, dict):
        ids = list(vocabulary.values())
    elif isinstance(vocabulary, list):
        ids = list(range(len(vocabulary)))
    else:
        raise ValueError("its model has no vocabulary")
    if not isinstance(added_tokens, list) or not all(isinstance(token, dict) for token in added_tokens):
        raise ValueError("its added tokens are not a list of tokens")
    ids += [token.get("id") for token in added_tokens]
    if not ids or not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise ValueError("its vocabulary has tokens without a number, or no tokens")
    return max(ids) + 1


def find_tokenizer(place: str, flag: str) -> Path:
    """The tokenizer.json that a flag names, fetched if the model is in S3. Raises StepError if there is none."""
    try:
        path = fetch_folder(place, MANIFEST) if is_s3_uri(place) else Path(place.removeprefix("file://"))
    except NoSuchKey:
        raise StepError(f"{flag} {place}: no finished model there; everstep.steps.model makes one") from None
    except StoreError as error:
        raise StepError(f"{flag} {error}", disk_error_code(error)) from None
    is_folder = os.path.isdir(path)  # Path.is_dir raises for a name that is too long.
    file = path / "tokenizer.json" if is_folder else path
    if not os.path.isfile(file):
        what = "no tokenizer.json in this folder" if is_folder else "no such file or folder"
        raise StepError(f"{flag} {place}: {what}; give a tokenizer.json or a Hugging Face directory")
    try:
        vocabulary_size(file.read_bytes())
    except OSError as error:
        raise StepError(f"{flag} {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise StepError(f"{flag} {file}: not a tokenizer.json ({error}); give a Hugging Face tokenizer's") from None
    return file
