"""The tokenizer: the user's, of any of Megatron's types, or a byte-level BPE trained on the corpus."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.entry import StepError
from everstep.steps.model.tokenizer import find_tokenizer
from everstep.steps.preprocess.config import Config
from everstep.steps.preprocess.tiktoken_tables import SUFFIX, encoding_of_table, json_of_bytes, json_of_encoding
from everstep.steps.preprocess.tokenizer_files import TokenizerType, gpt2_files

EOD = "<|endoftext|>"
SAMPLE_BYTES = 48 << 20
"""A vocabulary is trained on about so much text, sampled evenly from the whole corpus."""
CHARACTERS_SIZE, CHARACTERS_EOD = 512, 0
"""Those of GPT-NeoX's CharLevelTokenizer, whose tokens are the bytes of UTF-8."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and what training needs to know about it."""

    size: int
    """The largest token id plus one."""
    eod: int | None
    """The token after each document; None if none is appended."""
    json: bytes = b""
    """The tokenizer.json."""
    special: bool = False
    """Add the special tokens that the tokenizer.json puts around a text, as GPT-NeoX's HFTokenizer does."""
    encoding: str = ""
    """Name of tiktoken's encoding or path of its table, if it is one."""
    is_bytes: bool = False
    """Its tokens are the bytes of UTF-8."""


def tokenizer_files(config: Config) -> tuple[Path, ...]:
    """The files that identify a given tokenizer; empty if it is trained, or has only a name."""
    if config.tokenizer_type in (TokenizerType.HF_GPT2.value, TokenizerType.GPT2_BPE.value):
        return gpt2_files(config.vocab_file, config.merge_file)
    if config.tokenizer or config.tokenizer_type == TokenizerType.HF.value:
        file = find_tokenizer(config.tokenizer or config.vocab_file, "--tokenizer")
        beside = file.with_name("tokenizer_config.json")
        return (file, beside) if beside.is_file() else (file,)
    if config.tokenizer_type == TokenizerType.TIKTOKEN.value and config.vocab_file.endswith(SUFFIX):
        return (Path(config.vocab_file),)
    return ()


def load(config: Config) -> Vocabulary:
    """The tokenizer that the user gave. Raises StepError if it is invalid, or lacks the end-of-document token."""
    kind = TokenizerType(config.tokenizer_type) if config.tokenizer_type else None
    if kind is TokenizerType.CHARACTERS:
        eod = CHARACTERS_EOD if config.append_eod else None
        return Vocabulary(CHARACTERS_SIZE, eod, json_of_bytes(), is_bytes=True)
    if kind is TokenizerType.TIKTOKEN:
        return _tiktoken(config)
    if kind in (TokenizerType.HF_GPT2, TokenizerType.GPT2_BPE):
        paths = gpt2_files(config.vocab_file, config.merge_file)
        if len(paths) == 2:
            return _gpt2(config, *paths, special_eod=kind is TokenizerType.HF_GPT2)
        return _of_json(config, paths[0], special=False)
    source = config.tokenizer or config.vocab_file
    return _of_json(config, find_tokenizer(source, "--tokenizer"), special=kind is TokenizerType.HF)


def _of_json(config: Config, file: Path, special: bool) -> Vocabulary:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself for every file that it refuses
        raise StepError(f"{file}: not a tokenizer.json ({_first_line(error)})") from None
    names = [config.eod_token] if config.eod_token else [EOD, *_eos_token(file.with_name("tokenizer_config.json"))]
    return Vocabulary(_size(tokenizer), _eod(config, tokenizer, names), file.read_bytes(), special)


def _gpt2(config: Config, vocab: Path, merges: Path, special_eod: bool) -> Vocabulary:
    """GPT-2's byte-level BPE from its two files. Only Hugging Face's variant recognizes the end token in texts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # noqa: BLE001 - as above
        raise StepError(f"{vocab}, {merges}: not a vocabulary and its merges ({_first_line(error)})") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    eod = _eod(config, tokenizer, [config.eod_token or EOD])
    if special_eod:
        tokenizer.add_special_tokens([AddedToken(config.eod_token or EOD)])
    return Vocabulary(_size(tokenizer), eod, tokenizer.to_str().encode())


def _tiktoken(config: Config) -> Vocabulary:
    source = config.vocab_file
    if source.endswith(SUFFIX):
        encoding = encoding_of_table(source, Path(source).read_bytes())
    else:
        encoding = _named_encoding(source)
    eod = encoding.eot_token if config.append_eod else None
    return Vocabulary(encoding.n_vocab, eod, json_of_encoding(encoding), encoding=source)


def _named_encoding(name: str) -> Any:
    import tiktoken

    if name not in (names := tiktoken.list_encoding_names()):
        raise StepError(f"--vocab-file {name}: not one of tiktoken's encodings; it has {', '.join(names)}")
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # fetched over the network unless it is in $TIKTOKEN_CACHE_DIR
        raise StepError(
            f"--vocab-file {name}: cannot be fetched ({_first_line(error)[:200]}); give its table {name}{SUFFIX}, or "
            "set TIKTOKEN_CACHE_DIR to a folder that has it",
            code=ExitCode.TRY_AGAIN,
        ) from None


def _eod(config: Config, tokenizer: Any, names: list[str]) -> int | None:
    if not config.append_eod:
        return None
    eod = next((token for token in map(tokenizer.token_to_id, names) if token is not None), None)
    if eod is None:
        raise StepError(
            f"{config.tokenizer or config.vocab_file}: has no token {' or '.join(names)} to end documents; "
            "name one with --eod-token, or do not give --append-eod"
        )
    return eod


def train(texts: Iterator[str], vocab_size: int, eod_token: str, append_eod: bool) -> Vocabulary:
    """A byte-level BPE like GPT-2's. The same texts in the same order give the same file."""
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
    return Vocabulary(_size(tokenizer), eod if append_eod else None, tokenizer.to_str().encode())


def _eos_token(config: Path) -> list[str]:
    if not config.is_file():
        return []
    try:
        value = json.loads(config.read_bytes()).get("eos_token")
    except (ValueError, AttributeError):
        raise StepError(f"{config}: not a tokenizer_config.json; fix it, or name the token with --eod-token") from None
    name = value.get("content") if isinstance(value, dict) else value
    return [name] if isinstance(name, str) else []


def _size(tokenizer: Any) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
