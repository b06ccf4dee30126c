"""Tokenizer files, by GPT-NeoX's names of their types: found and checked before anything starts."""

import enum
import os
from pathlib import Path

from everstep.runtime.store import NoSuchKey, StoreError, fetch_folder, is_s3_uri
from everstep.steps.entry import StepError
from everstep.steps.model.directory import MANIFEST
from everstep.steps.model.tokenizer import vocabulary_size


class TokenizerType(enum.Enum):
    """Tokenizers by the names that GPT-NeoX gives them."""

    HF = "HFTokenizer"
    HF_GPT2 = "HFGPT2Tokenizer"
    GPT2_BPE = "GPT2BPETokenizer"
    CHARACTERS = "CharLevelTokenizer"
    TIKTOKEN = "TiktokenTokenizer"


def find_tokenizer(given: str, flag: str) -> Path:
    """The tokenizer.json that a flag names, fetched if the model is in S3. Raises StepError if there is none.

    Standard library only.
    """
    try:
        path = fetch_folder(given, MANIFEST) if is_s3_uri(given) else Path(given.removeprefix("file://"))
    except NoSuchKey:
        raise StepError(f"{flag} {given}: no finished model there; everstep.steps.model makes one") from None
    except StoreError as error:
        raise StepError(f"{flag} {error}") from None
    is_folder = os.path.isdir(path)  # Path.is_dir raises for a name that is too long.
    file = path / "tokenizer.json" if is_folder else path
    if not os.path.isfile(file):
        what = "no tokenizer.json in this folder" if is_folder else "no such file or folder"
        raise StepError(f"{flag} {given}: {what}; give a tokenizer.json or a Hugging Face directory")
    try:
        vocabulary_size(file.read_bytes())
    except OSError as error:
        raise StepError(f"{flag} {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise StepError(f"{flag} {file}: not a tokenizer.json ({error}); give a Hugging Face tokenizer's") from None
    return file


def gpt2_files(vocab_file: str, merge_file: str) -> tuple[Path, ...]:
    """vocab.json and merges.txt, or the tokenizer.json of a folder that has one. Raises StepError."""
    folder = Path(vocab_file)
    if merge_file:
        pair = folder, Path(merge_file)
    elif folder.is_dir() and not (folder / "tokenizer.json").is_file():
        pair = folder / "vocab.json", folder / "merges.txt"
    else:
        return (find_tokenizer(vocab_file, "--vocab-file"),)
    for path, flag in zip(pair, ("--vocab-file", "--merge-file"), strict=True):
        if not path.is_file():
            raise StepError(f"{flag} {path}: no such file; give the tokenizer's vocab.json and merges.txt")
    return pair
