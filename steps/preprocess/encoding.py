"""Text to token ids, exactly as the tokenizer.json says.

A byte-level BPE is encoded by tiktoken, several times faster per core, where its result is proven equal on a sample
at the start; everything else, and every text that tiktoken cannot take, by tokenizers itself.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""What ByteLevel(use_regex=True) splits at (openai/gpt-2, encoder.py)."""
LONGEST_RUN = 4096
"""Characters without a place to split; tiktoken's regular expression overflows its stack on far longer runs."""
HARD_CASES = (
    "",
    " ",
    "\n\n\n  \t x",
    "don't  WE'LL it's",
    "naïve 東京 🙂🇩🇪 e\u0301 \u200b\ufeff",
    "a" * 300,
    " " * 300 + "x",
    "\r\n\x00\x7f",
    "1234567890 3.14e-10 0xFF",
    "if x:\n        return  [y]\n",
)


@dataclass(frozen=True)
class Encoder:
    """`encode(text)` -> ids, (n,) int; `name` says by which library."""

    name: str
    encode: Callable[[str], np.ndarray]


def make_encoder(tokenizer_json: str, samples: Iterable[str]) -> Encoder:
    """The fastest encoder whose result on `samples` and the hard cases is that of tokenizers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    fast = fast_encoder(tokenizer_json)
    if fast is None:
        return Encoder("tokenizers", lambda text: _slow(tokenizer, text))
    for text in (*HARD_CASES, *samples):
        if _unsafe(text, fast.added) or np.array_equal(fast.encode(text), _slow(tokenizer, text)):
            continue
        return Encoder("tokenizers", lambda text: _slow(tokenizer, text))
    return proven_encoder(tokenizer_json)


def proven_encoder(tokenizer_json: str) -> Encoder:
    """tiktoken with tokenizers for what it cannot take: for a tokenizer.json that `make_encoder` has proven."""
    from tokenizers import Tokenizer

    tokenizer, fast = Tokenizer.from_str(tokenizer_json), fast_encoder(tokenizer_json)
    if fast is None:
        raise ValueError("not a byte-level BPE")
    kept = fast

    def encode(text: str) -> np.ndarray:
        return _slow(tokenizer, text) if _unsafe(text, kept.added) else kept.encode(text)

    return Encoder("tiktoken", encode)


def plain_encoder(tokenizer_json: str) -> Encoder:
    """tokenizers, for everything."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    return Encoder("tokenizers", lambda text: _slow(tokenizer, text))


@dataclass(frozen=True)
class FastEncoder:
    """tiktoken built from a tokenizer.json; it does not know the added tokens."""

    encode: Callable[[str], np.ndarray]
    added: re.Pattern[str] | None
    """Finds a text that contains one."""


def fast_encoder(tokenizer_json: str) -> FastEncoder | None:
    """tiktoken with the same merges, None unless the tokenizer is a byte-level BPE without normalization."""
    value = json.loads(tokenizer_json)
    pattern = _split_pattern(value)
    if pattern is None:
        return None
    model, byte = value["model"], _bytes_of_characters()
    vocab: dict[str, int] = model["vocab"]
    ranks: dict[bytes, int] = {bytes([code]): rank for rank, code in enumerate(range(256))}
    ids = np.zeros(256 + len(model["merges"]), dtype=np.int64)
    for character, code in byte.items():
        if character not in vocab:
            return None
        ids[code] = vocab[character]
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        token = bytes(byte[character] for character in left + right)
        if token not in ranks:  # a second way to the same token
            ids[len(ranks)] = vocab[left + right]
            ranks[token] = len(ranks)
    added = [re.escape(token["content"]) for token in value.get("added_tokens") or []]

    import tiktoken

    encoding = tiktoken.Encoding("tokenizer.json", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return FastEncoder(
        lambda text: ids[encoding.encode_to_numpy(text, disallowed_special=())],
        re.compile("|".join(added)) if added else None,
    )


def _split_pattern(value: dict[str, Any]) -> str | None:
    """The regular expression at which a byte-level BPE splits; None when the tokenizer is something else."""
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


def _unsafe(text: str, added: re.Pattern[str] | None) -> bool:
    """An added token in it, or a run of characters so long that tiktoken might fail on it or take long."""
    if added and added.search(text):
        return True
    if len(text) <= LONGEST_RUN:
        return False
    return max(map(len, text.split()), default=0) > LONGEST_RUN or re.search(rf"\s{{{LONGEST_RUN}}}", text) is not None


def _slow(tokenizer: Any, text: str) -> np.ndarray:
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return np.asarray(encoded.ids, dtype=np.int64)


def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable bytes are themselves, the others the characters from U+0100 on (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [code for code in range(256) if code not in set(printable)]
    return {chr(code): code for code in printable} | {chr(256 + n): code for n, code in enumerate(others)}
