"""Tokenizer files, by GPT-NeoX's names of their types: found and checked before anything starts."""

import enum
import os
from pathlib import Path

from everstep.steps.entry import StepError
from everstep.steps.model.tokenizer import find_tokenizer


class TokenizerType(enum.Enum):
    """Tokenizers by the names that GPT-NeoX gives them."""

    HF = "HFTokenizer"
    HF_GPT2 = "HFGPT2Tokenizer"
    GPT2_BPE = "GPT2BPETokenizer"
    CHARACTERS = "CharLevelTokenizer"
    TIKTOKEN = "TiktokenTokenizer"


def gpt2_files(vocab_file: str, merge_file: str) -> tuple[Path, ...]:
    """vocab.json and merges.txt, or the tokenizer.json of a folder that has one. Raises StepError."""
    folder = Path(vocab_file)
    if merge_file:
        pair = folder, Path(merge_file)
    elif os.path.isdir(folder) and not (folder / "tokenizer.json").is_file():  # Path.is_dir raises for too long a name.
        pair = folder / "vocab.json", folder / "merges.txt"
    else:
        return (find_tokenizer(vocab_file, "--vocab-file"),)
    for path, flag in zip(pair, ("--vocab-file", "--merge-file"), strict=True):
        if not os.path.isfile(path):
            raise StepError(f"{flag} {path}: no such file; give the tokenizer's vocab.json and merges.txt")
    return pair


def require_table(vocab_file: str) -> None:
    """Raise StepError for a missing file of a tiktoken table. A name is known to tiktoken alone."""
    is_path = vocab_file.endswith(".tiktoken") or "/" in vocab_file
    if is_path and not (vocab_file.endswith(".tiktoken") and os.path.isfile(vocab_file)):
        raise StepError(f"--vocab-file {vocab_file}: no such table; give a file named like cl100k_base.tiktoken")
