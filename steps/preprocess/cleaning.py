"""Which documents are kept, in which split, and with which repairs: pure except for ftfy.

A document's hash decides its split, wherever the document is. So equal documents are in the same split, and the
held-out documents do not depend on the order of the input.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

HASH_BYTES = 16
SHORT, LONG, UNREADABLE, DUPLICATE = "too short", "too long", "unreadable", "duplicate"
"""Reasons for which a document is dropped."""
Texts = Sequence[str | None]


@dataclass(frozen=True)
class Cleaning:
    """What is asked for; by default, nothing."""

    ftfy: bool = False
    shortest: int = 0
    """Characters, summed over all texts of a document."""
    longest: int = 0
    """0: no limit."""
    held_out: float = 0.0
    """Share of the documents."""
    unique: bool = False
    """Drop documents whose texts came before?"""


NO_CLEANING = Cleaning()


class Document(NamedTuple):
    """A document that is kept."""

    texts: Texts
    digest: bytes
    """HASH_BYTES bytes, of all its texts."""
    held_out: bool


class Cleaner:
    """Applies a `Cleaning` to one document after the other, and counts."""

    def __init__(self, cleaning: Cleaning, keys: int) -> None:
        self.having = [0] * keys
        """For each key, documents that have it, including dropped ones."""
        self.mended = 0
        """Documents that ftfy changed."""
        self.dropped = {SHORT: 0, LONG: 0}
        self._fix = _fixer() if cleaning.ftfy else None
        self._shortest, self._longest = cleaning.shortest, cleaning.longest
        self._limited = bool(cleaning.shortest or cleaning.longest)
        self._below = round(cleaning.held_out * (1 << 64))

    def clean(self, texts: Texts) -> Document | None:
        """The cleaned document; None if it is dropped."""
        for key, text in enumerate(texts):
            self.having[key] += text is not None
        if self._fix:
            fixed_texts = [text if text is None else self._fix(text) for text in texts]
            self.mended += fixed_texts != list(texts)
            texts = fixed_texts
        if self._limited:
            length = sum(len(text) for text in texts if text is not None)
            if length < self._shortest:
                self.dropped[SHORT] += 1
                return None
            if self._longest and length > self._longest:
                self.dropped[LONG] += 1
                return None
        digest = digest_of(texts)
        return Document(texts, digest, int.from_bytes(digest[:8], "big") < self._below)


def digest_of(texts: Texts) -> bytes:
    """A document's hash (XXH3, 128 bits): equal for equal texts under the same keys."""
    if len(texts) == 1 and texts[0] is not None:
        return xxhash.xxh3_128_digest(texts[0].encode())
    each = (bytes(HASH_BYTES) if text is None else xxhash.xxh3_128_digest(text.encode()) for text in texts)
    return xxhash.xxh3_128_digest(b"".join(each))


def mend(texts: Iterable[str]) -> Iterator[str]:
    """The texts as ftfy repairs them."""
    return map(_fixer(), texts)


def _fixer() -> Callable[[str], str]:
    from ftfy import fix_text

    return fix_text
