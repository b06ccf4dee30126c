"""The files of a shard: tokens and lengths for each split and key, document hashes, and a few sample texts."""

import heapq
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from everstep.steps.preprocess.cleaning import Document

SAMPLES = 12
_SHOWN_CHARACTERS = 1200
"""Characters of each text that a sample keeps."""


class Part(msgspec.Struct, frozen=True):
    """What was written for one split and key. File names are relative to the workspace."""

    tokens_file: str
    lengths_file: str
    """Tokens of each document of the split, int32; 0 if it has none for this key."""
    documents: int
    """Documents with tokens."""
    tokens: int
    bytes: int
    """Bytes of text, UTF-8."""
    having: int
    """Documents that have the key, including those without tokens."""


class SplitFiles(msgspec.Struct, frozen=True):
    """What was written for one split: one part for each key."""

    split: str
    parts: tuple[Part, ...]
    documents: int
    digests: str
    """The file with the documents' hashes; empty if they are not needed."""

    def files(self) -> list[str]:
        """All of its files."""
        files = [name for part in self.parts for name in (part.tokens_file, part.lengths_file)]
        return [*files, self.digests] if self.digests else files


class Sample(msgspec.Struct, frozen=True):
    """A sample document for the page."""

    digest: str
    texts: tuple[str | None, ...]
    """The beginnings of its texts."""
    characters: int
    """Length of the complete texts."""


class Samples:
    """The documents with the smallest hashes: a random sample that does not depend on the division into tasks."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Sample]] = []  # the largest hash first
        self._largest = 1 << 128
        self._seen: set[str] = set()

    def add(self, document: Document) -> None:
        """Keep the document if its hash is among the smallest."""
        value = int.from_bytes(document.digest, "big")
        if value < self._largest:
            beginnings = tuple(text and text[:_SHOWN_CHARACTERS] for text in document.texts)
            length = sum(len(text) for text in document.texts if text is not None)
            self.take(Sample(document.digest.hex(), beginnings, length))

    def take(self, sample: Sample) -> None:
        """Keep another shard's sample if its hash is among the smallest."""
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
        """The samples, the smallest hash first."""
        return tuple(sample for _, sample in sorted(self._heap, key=lambda entry: -entry[0]))


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
        """Write one document."""
        self._documents += 1
        for output, text in zip(self._outputs, texts, strict=True):
            output.add(text)
        if self._digests:
            self._digests.write(digest)

    def close(self) -> SplitFiles:
        """Finish the files; returns what was written."""
        if self._digests:
            self._digests.close()
        parts = tuple(output.close() for output in self._outputs)
        return SplitFiles(self._name, parts, self._documents, self._digests_file.name if self._digests_file else "")


class _Output:
    """Writes the tokens of one key."""

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
