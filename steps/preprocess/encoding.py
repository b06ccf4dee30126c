"""Text to token ids, exactly as the tokenizer.json says.

tiktoken encodes a byte-level BPE several times faster per core. It is used if its result equals that of tokenizers on a
sample at the start. Everything else, and every text that tiktoken cannot take, goes to tokenizers itself.
"""

import enum
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from everstep.runtime.text import open_bytes
from everstep.steps.preprocess.byte_level import HARD_CASES, bytes_of_characters

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GPT2_PATTERN = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s++"
"""The pattern of ByteLevel(use_regex=True) (openai/gpt-2, encoder.py), without backtracking."""
BLOCK = 2048
"""Characters. A run of one class (letters and digits, spaces, others) longer than two blocks fills one.

On such a run tiktoken's regular expression might overflow its stack, and merging takes time quadratic in its length.
"""
_AT_ONCE = 512
"""Texts that tokenizers gets at once for a proof: one by one, its threads would mostly wait."""


class EncodingMethod(enum.Enum):
    """The library that encodes a text."""

    TIKTOKEN = "tiktoken"
    """Proven equal to TOKENIZERS."""
    TOKENIZERS = "tokenizers"
    BYTES = "bytes of UTF-8"
    ENCODING = "tiktoken's own encoding"


@dataclass(frozen=True)
class Recipe:
    """How to make an encoder, for every process that needs one."""

    how: EncodingMethod
    source: str = ""
    """Path or s3:// address of the tokenizer.json; name of tiktoken's encoding, or its table."""
    special: bool = False
    """Add the special tokens that the tokenizer.json puts around a text."""


@dataclass(frozen=True)
class Encoder:
    """`encode(text)` -> ids, (n,) of an integer type; `how` names the library."""

    how: EncodingMethod
    encode: Callable[[str], np.ndarray]


def encoder(recipe: Recipe) -> Encoder:
    """The encoder for that recipe."""
    if recipe.how is EncodingMethod.BYTES:
        return Encoder(recipe.how, lambda text: np.frombuffer(text.encode(), dtype=np.uint8))
    if recipe.how is EncodingMethod.ENCODING:
        encoding = _open_encoding(recipe.source)
        return Encoder(recipe.how, lambda text: encoding.encode_to_numpy(text, allowed_special="all"))
    with open_bytes(recipe.source) as file:
        tokenizer_json = file.readall().decode()
    make = proven_encoder if recipe.how is EncodingMethod.TIKTOKEN else plain_encoder
    return make(tokenizer_json, recipe.special)


def _open_encoding(source: str) -> Any:
    """tiktoken's encoding, by its name or from its table."""
    import tiktoken

    from everstep.steps.preprocess.tiktoken_tables import SUFFIX, encoding_of_table

    if not source.endswith(SUFFIX):
        return tiktoken.get_encoding(source)
    with open_bytes(source) as file:
        return encoding_of_table(source, file.readall())


def make_encoder(tokenizer_json: str, samples: Iterable[str], special: bool = False) -> Encoder:
    """The fastest encoder that agrees with tokenizers on `samples`, the hard cases and each token's own text."""
    tokenizer = _load_tokenizer(tokenizer_json)
    plain, fast = _plain(tokenizer, special), fast_encoder(tokenizer_json)
    if fast is None:
        return plain
    every = chain(HARD_CASES, token_texts(tokenizer_json), samples)
    texts = (text for text in every if not needs_tokenizers(text, fast.added))
    while some := list(islice(texts, _AT_ONCE)):
        expected = tokenizer.encode_batch_fast(some, add_special_tokens=special)
        if any(fast.encode(text).tolist() != encoding.ids for text, encoding in zip(some, expected, strict=True)):
            return plain
    return _combine(fast, lambda: plain)


def token_texts(tokenizer_json: str) -> Iterator[str]:
    """The text of each token of a byte-level BPE, for tokens that are valid text."""
    byte = bytes_of_characters()
    for token in json.loads(tokenizer_json)["model"]["vocab"]:
        with suppress(KeyError, UnicodeDecodeError):
            yield bytes(byte[character] for character in token).decode()


def proven_encoder(tokenizer_json: str, special: bool = False) -> Encoder:
    """tiktoken, with tokenizers for what it cannot take. Only for a tokenizer.json that `make_encoder` has proven."""
    fast = fast_encoder(tokenizer_json)
    if fast is None:
        raise ValueError("not a byte-level BPE")
    return _combine(fast, cache(lambda: plain_encoder(tokenizer_json, special)))


def _combine(fast: "FastEncoder", plain: Callable[[], Encoder]) -> Encoder:
    """`plain` is created when a text first needs it: most inputs have no such text."""
    quick, added_tokens = fast.encode, fast.added
    return Encoder(
        EncodingMethod.TIKTOKEN,
        lambda text: plain().encode(text) if needs_tokenizers(text, added_tokens) else quick(text),
    )


def plain_encoder(tokenizer_json: str, special: bool = False) -> Encoder:
    """tokenizers, for everything."""
    return _plain(_load_tokenizer(tokenizer_json), special)


def _load_tokenizer(tokenizer_json: str) -> "Tokenizer":
    """The tokenizer without truncation and padding, which some files keep from their last use."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _plain(tokenizer: "Tokenizer", special: bool) -> Encoder:
    def encode(text: str) -> np.ndarray:
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return np.asarray(encoding.ids, dtype=np.int64)

    return Encoder(EncodingMethod.TOKENIZERS, encode)


@dataclass(frozen=True)
class FastEncoder:
    """tiktoken built from a tokenizer.json; it does not know the added tokens."""

    encode: Callable[[str], np.ndarray]
    added: "AddedTokens"


def fast_encoder(tokenizer_json: str) -> FastEncoder | None:
    """tiktoken with the same merges; None unless the tokenizer is a byte-level BPE without normalization."""
    value = json.loads(tokenizer_json)
    pattern = _split_pattern(value)
    if pattern is None:
        return None
    model, byte = value["model"], bytes_of_characters()
    vocab: dict[str, int] = model["vocab"]
    ranks: dict[bytes, int] = {bytes([code]): rank for rank, code in enumerate(range(256))}
    ids = np.zeros(256 + len(model["merges"]), dtype=np.int32)
    for character, code in byte.items():
        if character not in vocab:
            return None
        ids[code] = vocab[character]
    for merge in model["merges"]:
        first_half, right = merge.split(" ") if isinstance(merge, str) else merge
        token = bytes(byte[character] for character in first_half + right)
        if token not in ranks:  # a second way to the same token
            ids[len(ranks)] = vocab[first_half + right]
            ranks[token] = len(ranks)
    added_tokens = [token["content"] for token in value.get("added_tokens") or []]

    import tiktoken

    encoding = tiktoken.Encoding("tokenizer.json", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return FastEncoder(
        lambda text: ids[encoding.encode_to_numpy(text, disallowed_special=())],
        AddedTokens(added_tokens),
    )


def _split_pattern(value: dict[str, Any]) -> str | None:
    """The regular expression at which a byte-level BPE splits; None for other tokenizers."""
    model, before = value["model"], value.get("pre_tokenizer") or {}
    if model.get("type") != "BPE" or value.get("normalizer") or model.get("ignore_merges"):
        return None
    if any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")):
        return None
    if before.get("type") == "ByteLevel" and before.get("use_regex", True) and not before.get("add_prefix_space"):
        return GPT2_PATTERN
    parts = before.get("pretokenizers") or []
    if before.get("type") != "Sequence" or [part["type"] for part in parts] != ["Split", "ByteLevel"]:
        return None
    split, level = parts
    if split["behavior"] != "Isolated" or split["invert"] or level.get("use_regex", True) or level["add_prefix_space"]:
        return None
    return split["pattern"].get("Regex")


def needs_tokenizers(text: str, added_tokens: "AddedTokens") -> bool:
    """Must tokenizers encode the text? It has an added token, or a run that tiktoken handles slowly or not at all."""
    return added_tokens.occur_in(text) or any(
        _RUN.match(text, start, start + BLOCK).end() == start + BLOCK  # type: ignore[union-attr] - any character fits
        for start in range(0, len(text) - BLOCK + 1, BLOCK)
    )


_RUN = re.compile(r"[^\W_]+|\s+|(?:[^\w\s]|_)+")


class AddedTokens:
    """The texts of the added tokens."""

    def __init__(self, tokens: list[str]) -> None:
        ends = zip(min(tokens, default=""), max(tokens, default=""), strict=False)
        self._common = "".join(first for first, last in takewhile(lambda pair: pair[0] == pair[1], ends))
        """Searched first: much faster than any regular expression."""
        self._any = re.compile("|".join(map(re.escape, tokens)))
        self._none = not tokens

    def occur_in(self, text: str) -> bool:
        """Does the text contain one?"""
        return not self._none and self._common in text and self._any.search(text) is not None
