"""A token dataset made by `steps.preprocess`: `dataset.json` names the splits, each a Megatron indexed dataset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everstep.runtime.data.errors import DatasetError
from everstep.runtime.data.indexed_dataset import IndexedDataset
from everstep.runtime.data.range_reads import Tokens
from everstep.runtime.store import NoSuchKey, StoreError, TooLarge, Unavailable, fetch_folder

MANIFEST = "dataset.json"
SPLITS = ("train", "validation")
TOKENS_SUFFIX = ".bin"


@dataclass(frozen=True)
class TokenDataset:
    """One split of a dataset: mapped into memory, or read by ranges from a store if it exceeds the local cache."""

    uri: str
    """The argument of `open_dataset`."""
    folder: Path
    split: str
    tokens: Tokens
    """All tokens of the split, 1-D, uint16 or int32."""
    documents: np.ndarray
    """First token of each document and, at the end, the number of tokens: (documents + 1,) int64."""
    meta: Mapping[str, Any]
    """The whole of `dataset.json`."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id of the tokenizer."""
        return int(self.meta["vocab_size"])

    @property
    def eod(self) -> int | None:
        """The id of the token after each document, if documents end with one."""
        return self.meta.get("eod")

    @property
    def tokenizer(self) -> Path:
        """The tokenizer.json that produced the tokens."""
        return self.folder / str(self.meta["tokenizer"])


def open_dataset(uri: str) -> TokenDataset:
    """Open the split that `uri` names: a dataset's directory or s3:// address, with `#validation` for the held-out
    split.

    Data in S3 is fetched once for all processes of this machine. If the dataset exceeds EVERSTEP_CACHE_BYTES,
    everything but the tokens is fetched, and tokens are read by ranges.

    Raises DatasetError: there is no finished dataset, files do not match `dataset.json`, or the split has no tokens;
    Unavailable if the store does not answer.
    """
    place, _, split = uri.partition("#")
    split = split or "train"
    if split not in SPLITS:
        raise DatasetError(f"{uri}: no split {split}; there are {' and '.join(SPLITS)}")
    far = ""
    try:
        try:
            folder = fetch_folder(place, MANIFEST)
        except TooLarge:
            folder, far = fetch_folder(place, MANIFEST, without=TOKENS_SUFFIX), place
    except NoSuchKey:
        raise DatasetError(
            f"{place}: no finished dataset (no {MANIFEST}); make one with everstep.steps.preprocess"
        ) from None
    except Unavailable:
        raise
    except StoreError as error:
        raise DatasetError(str(error)) from None
    meta = _read_manifest(folder / MANIFEST)
    entry = meta[split]
    indexed = IndexedDataset(folder / entry["prefix"], f"{far}/{entry['prefix']}{TOKENS_SUFFIX}" if far else "")
    if len(indexed.tokens) != entry["tokens"] or len(indexed) != entry["documents"]:
        raise DatasetError(
            f"{folder / entry['prefix']}.bin: {len(indexed.tokens)} tokens of {len(indexed)} documents, but {MANIFEST} "
            f"says {entry['tokens']} of {entry['documents']}; make the dataset again"
        )
    if not len(indexed.tokens):
        raise DatasetError(f"{uri}: the split {split} has no tokens; give the corpus a larger --validation-share")
    documents = np.zeros(len(indexed) + 1, dtype=np.int64)
    np.cumsum(indexed.lengths, out=documents[1:])
    return TokenDataset(uri, folder, split, indexed.tokens, documents, meta)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_bytes())
    except ValueError as error:
        raise DatasetError(f"{path}: not JSON ({error}); make the dataset again") from None
    if not isinstance(meta, dict) or meta.get("version") != 1 or not all(split in meta for split in SPLITS):
        raise DatasetError(f"{path}: not the manifest of a dataset of version 1; make the dataset again")
    return meta
