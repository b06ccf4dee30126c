"""The tokenizer: the one that is given, or a byte-level BPE trained on the corpus."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steps.entry import StepError

EOD = "<|endoftext|>"
SAMPLE_BYTES = 48 << 20
"""A vocabulary is trained on about so much text, taken evenly from the whole corpus."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as the file it is kept in, and what training needs to know of it."""

    json: bytes
    """tokenizer.json."""
    size: int
    """One more than the largest token id."""
    eod: int | None
    """The token after each document; None when there is none to append."""


def tokenizer_file(given: str) -> Path:
    """The tokenizer.json that `--tokenizer` names. Raises StepError when there is none. Standard library only."""
    path = Path(given.removeprefix("file://"))
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        what = "no tokenizer.json in this folder" if path.is_dir() else "no such file or folder"
        raise StepError(f"--tokenizer {given}: {what}; give a tokenizer.json or a Hugging Face directory")
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise StepError(f"--tokenizer {file}: not a tokenizer.json ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("model"), dict):
        raise StepError(f"--tokenizer {file}: not a tokenizer.json (it has no model); give a Hugging Face tokenizer's")
    return file


def load(given: str, eod_token: str, append_eod: bool) -> Vocabulary:
    """The given tokenizer. Raises StepError when it is none, or lacks the token that shall end documents."""
    from tokenizers import Tokenizer

    file = tokenizer_file(given)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself for every file that it refuses
        raise StepError(f"--tokenizer {file}: not a tokenizer.json ({_first_line(error)})") from None
    names = [eod_token] if eod_token else [EOD, *_eos_token(file.with_name("tokenizer_config.json"))]
    eod = next((found for found in map(tokenizer.token_to_id, names) if found is not None), None)
    if append_eod and eod is None:
        raise StepError(
            f"--tokenizer {given}: has no token {' or '.join(names)} to end documents; "
            "name one with --eod-token, or give --append-eod False"
        )
    return Vocabulary(file.read_bytes(), _size(tokenizer), eod if append_eod else None)


def train(texts: Iterator[str], vocab_size: int, eod_token: str, append_eod: bool) -> Vocabulary:
    """A byte-level BPE as GPT-2's. The same texts in the same order give the same file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,  # type: ignore[call-arg]
        special_tokens=[eod_token or EOD],  # type: ignore[call-arg]
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # type: ignore[call-arg]
        show_progress=False,  # type: ignore[call-arg]
    )
    tokenizer.train_from_iterator(texts, trainer)
    eod = tokenizer.token_to_id(eod_token or EOD)
    return Vocabulary(tokenizer.to_str().encode(), _size(tokenizer), eod if append_eod else None)


def sample(files: Sequence[dict[str, Any]], folder: Path, most_bytes: int = SAMPLE_BYTES) -> Iterator[str]:
    """Every n-th document of the corpus, n such that about `most_bytes` of text come together."""
    from steps.preprocess.lines import texts

    every = max(1, -(-sum(file["bytes"] for file in files) // most_bytes))
    number = 0
    for file in files:
        for text in texts(str(folder / file["name"]), 0, file["line_bytes"]):
            if number % every == 0:
                yield text
            number += 1


def _eos_token(config: Path) -> list[str]:
    if not config.is_file():
        return []
    try:
        value = json.loads(config.read_bytes()).get("eos_token")
    except (ValueError, AttributeError):
        raise StepError(f"{config}: not a tokenizer_config.json; mend it, or name the token with --eod-token") from None
    name = value.get("content") if isinstance(value, dict) else value
    return [name] if isinstance(name, str) else []


def _size(tokenizer: Any) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
