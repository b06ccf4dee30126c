"""The files of a shard: tokens and lengths of each split and key, hashes of documents, and a few texts to show."""

import heapq
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from everstep.steps.preprocess.cleaning import Document

SAMPLES = 12
_SHOWN_CHARACTERS = 1200
"""Characters of each text of a sample."""


class Part(msgspec.Struct, frozen=True):
    """What was written of one split and key. Names of files are those in the workspace."""

    tokens_file: str
    lengths_file: str
    """Tokens of each document of the split, int32; 0 where it has none of this key."""
    documents: int
    """Those with tokens."""
    tokens: int
    bytes: int
    """Of text, UTF-8."""
    having: int
    """Documents that have the key, those without a token too."""


class SplitFiles(msgspec.Struct, frozen=True):
    """What was written of one split, one part for each key."""

    split: str
    parts: tuple[Part, ...]
    documents: int
    digests: str
    """The file of the documents' hashes; empty when they are not wanted."""

    def files(self) -> list[str]:
        """All of them."""
        files = [name for part in self.parts for name in (part.tokens_file, part.lengths_file)]
        return [*files, self.digests] if self.digests else files


class Sample(msgspec.Struct, frozen=True):
    """A document to show."""

    digest: str
    texts: tuple[str | None, ...]
    """Their beginnings."""
    characters: int
    """Of the whole texts."""


class Samples:
    """The documents with the smallest hashes: any document may be one, and they do not depend on the tasks."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Sample]] = []  # the largest hash first
        self._largest = 1 << 128
        self._seen: set[str] = set()

    def add(self, document: Document) -> None:
        """Keep it, if it is one of those."""
        value = int.from_bytes(document.digest, "big")
        if value < self._largest:
            shown = tuple(text and text[:_SHOWN_CHARACTERS] for text in document.texts)
            length = sum(len(text) for text in document.texts if text is not None)
            self.take(Sample(document.digest.hex(), shown, length))

    def take(self, sample: Sample) -> None:
        """Keep one that another has chosen, if it is one of those here too."""
        value = int(sample.digest, 16)
        if value >= self._largest or sample.digest in self._seen:
            return
        self._seen.add(sample.digest)
        heapq.heappush(self._heap, (-value, sample))
        if len(self._heap) > SAMPLES:
            self._seen.remove(heapq.heappop(self._heap)[1].digest)
        if len(self._heap) == SAMPLES:
            self._largest = -self._heap[0][0]

    def in_order(self) -> tuple[Sample, ...]:
        """Smallest hash first."""
        return tuple(sample for _, sample in sorted(self._heap, key=lambda one: -one[0]))


class Split:
    """Writes the documents of one split of a shard."""

    def __init__(
        self,
        name: str,
        base: Path,
        keys: int,
        encode: Callable[[str], np.ndarray],
        dtype: str,
        eod: int | None,
        with_digests: bool,
    ) -> None:
        self._name = name
        self._outputs = [
            _Output(base.with_name(f"{base.name}.{key}"), encode, np.dtype(dtype), eod) for key in range(keys)
        ]
        self._digests_file = base.with_name(f"{base.name}.digests") if with_digests else None
        self._digests = self._digests_file.open("wb", 1 << 16) if self._digests_file else None
        self._documents = 0

    def totals(self) -> tuple[int, int]:
        """Tokens and bytes of text so far."""
        return sum(output.tokens for output in self._outputs), sum(output.bytes for output in self._outputs)

    def add(self, texts: Sequence[str | None], digest: bytes) -> None:
        """One document."""
        self._documents += 1
        for output, text in zip(self._outputs, texts, strict=True):
            output.add(text)
        if self._digests:
            self._digests.write(digest)

    def close(self) -> SplitFiles:
        """What was written."""
        if self._digests:
            self._digests.close()
        parts = tuple(output.close() for output in self._outputs)
        return SplitFiles(self._name, parts, self._documents, self._digests_file.name if self._digests_file else "")


class _Output:
    """The tokens of one key."""

    def __init__(self, base: Path, encode: Callable[[str], np.ndarray], dtype: np.dtype, eod: int | None) -> None:
        self._encode, self._dtype = encode, dtype
        self._end = b"" if eod is None else dtype.type(eod).tobytes()
        self._longer = 0 if eod is None else 1
        self._tokens_file = base.with_name(base.name + ".bin")
        self._lengths_file = base.with_name(base.name + ".lengths")
        self._file = self._tokens_file.open("wb", buffering=1 << 20)
        self._lengths = array("i")
        self.having = self.documents = self.tokens = self.bytes = 0

    def add(self, text: str | None) -> None:
        length = 0
        if text is not None:
            self.having += 1
            self.bytes += len(text) if text.isascii() else len(text.encode())
            ids = self._encode(text)
            if len(ids):
                self._file.write(ids.astype(self._dtype, copy=False).data)
                self._file.write(self._end)
                length = len(ids) + self._longer
                self.documents += 1
                self.tokens += length
        self._lengths.append(length)

    def close(self) -> Part:
        self._file.close()
        self._lengths_file.write_bytes(np.asarray(self._lengths, dtype="<i4").tobytes())
        files = self._tokens_file.name, self._lengths_file.name
        return Part(*files, self.documents, self.tokens, self.bytes, self.having)
