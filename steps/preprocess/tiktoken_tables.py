"""tiktoken's encodings from a table on disk (`cl100k_base.tiktoken`), and the tokenizer.json that equals an encoding.

A table has a line for each token: its bytes in base64, and its rank. What is not in it, the pattern and the special
tokens, is tiktoken's own for the encoding that the file is named after.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from types import FunctionType
from typing import TYPE_CHECKING, Any

from everstep.steps.entry import StepError
from everstep.steps.preprocess.byte_level import HARD_CASES, bytes_of_characters

if TYPE_CHECKING:
    from tiktoken import Encoding

SUFFIX = ".tiktoken"
_POSSESSIVE = re.compile(r"(\\p\{\w+\}\{\d+,\d+\})\+")
"""A count followed by +, which is possessive for tiktoken, but a repeated count for the library of tokenizers."""
_DOWNLOADED = "load_tiktoken_bpe"
"""The function of `tiktoken_ext.openai_public` that an encoding's constructor fetches its table with."""


def encoding_of_table(source: str, content: bytes) -> "Encoding":
    """The encoding of a table. Raises StepError for a damaged table, or a name that tiktoken does not have."""
    import tiktoken
    from tiktoken_ext import openai_public

    name = PurePosixPath(source).name.removesuffix(SUFFIX)
    constructor = openai_public.ENCODING_CONSTRUCTORS.get(name)
    if constructor is None or _DOWNLOADED not in constructor.__code__.co_names:
        table_names = [
            table_name
            for table_name, constructor in openai_public.ENCODING_CONSTRUCTORS.items()
            if _DOWNLOADED in constructor.__code__.co_names
        ]
        raise StepError(
            f"--vocab-file {source}: a table is named after its encoding, whose pattern it needs; rename it to one of "
            f"{', '.join(f'{table_name}{SUFFIX}' for table_name in table_names)}"
        )
    ranks = _ranks(source, content)
    settings = _construct(constructor, lambda *_, **__: ranks)
    return tiktoken.Encoding(
        name, pat_str=settings["pat_str"], mergeable_ranks=ranks, special_tokens=settings["special_tokens"]
    )


def _construct(constructor: Callable[[], dict[str, Any]], load: Callable[..., Mapping[bytes, int]]) -> dict[str, Any]:
    """What tiktoken's constructor says of the encoding, with `load` in place of its download."""
    code: Any = constructor
    return FunctionType(code.__code__, {**code.__globals__, _DOWNLOADED: load})()


def _ranks(source: str, content: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise StepError(
                f"--vocab-file {source} line {number}: not a token in base64 and its rank; give a table of tiktoken's"
            ) from None
    if missing := 256 - sum(len(token) == 1 for token in ranks):
        raise StepError(f"--vocab-file {source}: {missing} of the 256 bytes have no rank; the table is incomplete")
    return ranks


def json_of_encoding(encoding: "Encoding") -> bytes:
    """A tokenizer.json that encodes as it does. Raises StepError if hard cases show that there is none."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    ranks: dict[bytes, int] = encoding._mergeable_ranks
    text = _texts(ranks)
    # Special tokens are in the vocabulary, too: else their numbers would begin where the table ends.
    vocab = {text[token]: rank for token, rank in ranks.items()} | encoding._special_tokens
    merges = [(text[first], text[second]) for first, second in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))  # tiktoken takes a whole word that is a token.
    pattern = _POSSESSIVE.sub(r"(?>\1)", encoding._pat_str)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in encoding._special_tokens])
    for case in HARD_CASES:
        if tokenizer.encode(case).ids != encoding.encode(case, allowed_special="all"):
            raise StepError(
                f"tiktoken's {encoding.name} divides some texts as no tokenizer.json does, which a store needs; "
                "use --output-prefix"
            )
    return tokenizer.to_str().encode()


def _texts(ranks: Mapping[bytes, int]) -> dict[bytes, str]:
    """Each token's text in a byte-level vocabulary."""
    character = {byte: character for character, byte in bytes_of_characters().items()}
    return {token: "".join(character[byte] for byte in token) for token in ranks}


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The two tokens that each token is merged from, in the order of ranks. A token that no merge makes has none."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _split(ranks, token, rank)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _split(ranks: Mapping[bytes, int], token: bytes, limit: int) -> list[bytes]:
    """The parts of a token after every merge of a lower rank than its own."""
    parts = [token[n : n + 1] for n in range(len(token))]
    while len(parts) > 2:
        candidates = [(ranks.get(a + b, limit), n) for n, (a, b) in enumerate(pairwise(parts))]
        rank, place = min(candidates)
        if rank >= limit:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def json_of_bytes() -> bytes:
    """A tokenizer.json whose tokens are the bytes of UTF-8."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(dict(bytes_of_characters()), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return tokenizer.to_str().encode()
