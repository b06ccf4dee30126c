"""What is read: a corpus that everstep.steps.corpus made, with its two splits, or a user's files."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from everstep.runtime import text
from everstep.runtime.store import absolute_uri, open_store
from everstep.steps.entry import StepError, disk_error_code
from everstep.steps.preprocess.plan import shards

MANIFEST, SPLITS = "corpus.json", ("train", "validation")
_SAMPLE_PLACES = 64
"""A sample is taken from this many evenly spaced places."""
_CONCURRENT_FILES = 8


@dataclass(frozen=True)
class Input:
    """Extents by split, in order."""

    splits: dict[str, tuple[text.Extent, ...]]
    documents: int
    """0: unknown."""
    digest: str
    """Identifies the input."""

    def size(self, split: str) -> int:
        """Bytes as stored."""
        return sum(extent.size for extent in self.splits[split])


@dataclass(frozen=True)
class Corpus:
    """What everstep.steps.corpus made: a folder, or below an s3:// address. Its files are read in place."""

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
        """The input with the places where it may be cut. Raises StepError for damaged files."""
        extents = {split: _extents([f"{self.uri}/{name}" for name in self.files[split]]) for split in SPLITS}
        return Input(extents, self.documents, self.digest)


def open_corpus(corpus_uri: str) -> Corpus:
    """The corpus at that address, by its corpus.json. Raises StepError if it is not a corpus or lacks files."""
    uri, store = absolute_uri(corpus_uri), open_store(corpus_uri, read_only=True)
    manifest = store.get(MANIFEST)
    try:
        meta = json.loads(manifest)
        files = {split: [f"{split}/{file['name']}" for file in meta["files"][split]] for split in SPLITS}
        documents = meta["documents"] + meta["validation_documents"]
    except (ValueError, KeyError, TypeError):
        raise StepError(
            f"{uri}/{MANIFEST}: not the manifest of a corpus; make it again with python -m everstep.steps.corpus"
        ) from None
    keys = {entry.key for entry in store.list("")}
    if missing := [name for split in SPLITS for name in files[split] if name not in keys]:
        raise StepError(f"{uri}/{missing[0]}: missing, though {MANIFEST} names it; make the corpus again")
    return Corpus(uri, hashlib.sha256(manifest).hexdigest(), documents, files)


def from_files(paths: str, split: str, documents: int) -> Input:
    """The files that `--input` names, as one split. Raises StepError.

    The digest covers their paths, sizes and modification times: reading all of them twice would double the time.
    """
    names = find_files(paths)
    try:
        facts = [(name, *text.file_version(name)) for name in names]
    except OSError as error:
        raise StepError(str(error), disk_error_code(error)) from None
    return Input({split: _extents(names)}, documents, hashlib.sha256(json.dumps(facts).encode()).hexdigest())


def find_files(paths: str) -> list[str]:
    """The files that `--input` names. Raises StepError."""
    try:
        return text.find_files(paths, "--input")
    except text.TextError as error:
        raise StepError(str(error)) from None


def sample(source: Input, split: str, reader: text.DocumentReader, most_bytes: int) -> Iterator[str]:
    """About `most_bytes` of text from evenly spaced places, or all of it if there is less."""
    sample_shards = shards(split, source.splits[split], _SAMPLE_PLACES)
    for shard in sample_shards:
        bytes_left = most_bytes // len(sample_shards)
        try:
            for part in shard.pieces:
                for texts in reader.read(part):
                    for document in filter(None, texts):
                        yield document
                        bytes_left -= len(document.encode())
                    if bytes_left < 0:
                        break
                if bytes_left < 0:
                    break
        except text.TextError as error:
            raise StepError(str(error)) from None


def _extents(names: list[str]) -> tuple[text.Extent, ...]:
    """The extents of several files at a time: files of a store are read through."""
    try:
        with ThreadPoolExecutor(_CONCURRENT_FILES) as pool:
            return tuple(extent for extents in pool.map(text.extents, names) for extent in extents)
    except text.TextError as error:
        raise StepError(str(error)) from None
