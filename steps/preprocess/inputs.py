"""What is read: a corpus that everstep.steps.corpus made, with its two splits, or a user's files."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from everstep.runtime import text
from everstep.runtime.store import absolute_uri, open_store
from everstep.steps.entry import StepError
from everstep.steps.preprocess.plan import shards

MANIFEST, SPLITS = "corpus.json", ("train", "validation")
_SAMPLE_PLACES = 64
"""A sample is taken from so many places, evenly spread."""
_CONCURRENT_FILES = 8


@dataclass(frozen=True)
class Input:
    """Extents by split, in order."""

    splits: dict[str, tuple[text.Extent, ...]]
    documents: int
    """0: not known."""
    digest: str
    """Of what tells this input from another."""

    def size(self, split: str) -> int:
        """Bytes as stored."""
        return sum(extent.size for extent in self.splits[split])


@dataclass(frozen=True)
class Corpus:
    """What everstep.steps.corpus made: a folder, or below an s3:// address. Its files are read from where they are."""

    uri: str
    digest: str
    """Of its manifest."""
    documents: int
    files: dict[str, list[str]]
    """By split, in order."""

    @property
    def name(self) -> str:
        """The last part of its address."""
        return self.uri.rpartition("/")[2]

    def read(self) -> Input:
        """Where it may be cut. Raises StepError for damaged files."""
        extents = {split: _extents([f"{self.uri}/{name}" for name in self.files[split]]) for split in SPLITS}
        return Input(extents, self.documents, self.digest)


def open_corpus(given: str) -> Corpus:
    """The corpus there, by its corpus.json. Raises StepError for one that is none and for files that are missing."""
    uri, store = absolute_uri(given), open_store(given, read_only=True)
    told = store.get(MANIFEST)
    try:
        meta = json.loads(told)
        files = {split: [f"{split}/{file['name']}" for file in meta["files"][split]] for split in SPLITS}
        documents = meta["documents"] + meta["validation_documents"]
    except (ValueError, KeyError, TypeError):
        raise StepError(
            f"{uri}/{MANIFEST}: not the manifest of a corpus; make it again with python -m everstep.steps.corpus"
        ) from None
    there = {entry.key for entry in store.list("")}
    if missing := [name for split in SPLITS for name in files[split] if name not in there]:
        raise StepError(f"{uri}/{missing[0]}: missing, though {MANIFEST} names it; make the corpus again")
    return Corpus(uri, hashlib.sha256(told).hexdigest(), documents, files)


def from_files(given: str, split: str, documents: int) -> Input:
    """The files that `--input` names, as one split. Raises StepError.

    The digest is of their paths, sizes and times of change: reading all of them twice would double the time.
    """
    names = find_files(given)
    try:
        told = [(name, *text.file_version(name)) for name in names]
    except OSError as error:
        raise StepError(str(error)) from None
    return Input({split: _extents(names)}, documents, hashlib.sha256(json.dumps(told).encode()).hexdigest())


def find_files(given: str) -> list[str]:
    """Files that `--input` names. Raises StepError."""
    try:
        return text.find_files(given, "--input")
    except text.TextError as error:
        raise StepError(str(error)) from None


def sample(given: Input, split: str, reader: text.DocumentReader, most_bytes: int) -> Iterator[str]:
    """About `most_bytes` of text from places that are spread evenly; all of it when there is no more."""
    planned = shards(split, given.splits[split], _SAMPLE_PLACES)
    for shard in planned:
        left = most_bytes // len(planned)
        try:
            for part in shard.pieces:
                for texts in reader.read(part):
                    for one in filter(None, texts):
                        yield one
                        left -= len(one.encode())
                    if left < 0:
                        break
                if left < 0:
                    break
        except text.TextError as error:
            raise StepError(str(error)) from None


def _extents(names: list[str]) -> tuple[text.Extent, ...]:
    """Several files at a time: those of a store are read through."""
    try:
        with ThreadPoolExecutor(_CONCURRENT_FILES) as pool:
            return tuple(extent for found in pool.map(text.extents, names) for extent in found)
    except text.TextError as error:
        raise StepError(str(error)) from None
