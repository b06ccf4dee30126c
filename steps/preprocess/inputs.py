"""What is read: a corpus that steps.corpus made, with its two splits, or a user's files."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime import text
from steps.entry import StepError
from steps.preprocess.plan import shards

SPLITS = ("train", "validation")
_PLACES = 64
"""A sample is taken from so many places, evenly spread."""
_AT_ONCE = 8


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


def manifest(folder: Path) -> dict[str, Any]:
    """The corpus.json of a corpus whose files are there. Raises StepError."""
    path = folder / "corpus.json"
    try:
        meta = json.loads(path.read_bytes())
        named = [folder / split / file["name"] for split in SPLITS for file in meta["files"][split]]
    except (ValueError, KeyError, TypeError):
        raise StepError(f"{path}: not the manifest of a corpus; make it again with python -m steps.corpus") from None
    for file in named:
        if not file.is_file():
            raise StepError(f"{file}: missing, though corpus.json names it; make the corpus again")
    return meta


def corpus(folder: Path, meta: dict[str, Any]) -> Input:
    """The corpus of that manifest. Raises StepError for damaged files."""
    files = {
        split: [str((folder / split / file["name"]).absolute()) for file in meta["files"][split]] for split in SPLITS
    }
    digest = hashlib.sha256((folder / "corpus.json").read_bytes()).hexdigest()
    count = meta["documents"] + meta["validation_documents"]
    return Input({split: _extents(files[split]) for split in SPLITS}, count, digest)


def files(given: str, split: str, documents: int) -> Input:
    """The files that `--input` names, as one split. Raises StepError.

    The digest is of their paths, sizes and times of change: reading all of them twice would double the time.
    """
    names = found(given)
    try:
        told = [(name, *text.facts(name)) for name in names]
    except OSError as error:
        raise StepError(str(error)) from None
    return Input({split: _extents(names)}, documents, hashlib.sha256(json.dumps(told).encode()).hexdigest())


def found(given: str) -> list[str]:
    """Files that `--input` names. Raises StepError."""
    try:
        return text.find(given, "--input")
    except text.TextError as error:
        raise StepError(str(error)) from None


def sample(given: Input, split: str, reader: text.Reader, most_bytes: int) -> Iterator[str]:
    """About `most_bytes` of text from places that are spread evenly; all of it when there is no more."""
    planned = shards(split, given.splits[split], _PLACES)
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
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return tuple(extent for found in pool.map(text.extents, names) for extent in found)
    except text.TextError as error:
        raise StepError(str(error)) from None
