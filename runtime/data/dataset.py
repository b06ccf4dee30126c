"""A token dataset as `steps.preprocess` makes it: `dataset.json` names the splits, each a Megatron indexed dataset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everstep.runtime.data.errors import DatasetError
from everstep.runtime.data.indexed import IndexedDataset
from everstep.runtime.data.ranged import Tokens
from everstep.runtime.store import NoSuchKey, StoreError, TooLarge, fetch_folder

MANIFEST = "dataset.json"
SPLITS = ("train", "validation")
TOKENS_SUFFIX = ".bin"


@dataclass(frozen=True)
class TokenDataset:
    """One split of a dataset: mapped into memory, or read by ranges from a store that holds more than fits here."""

    uri: str
    """What `open_dataset` was given."""
    folder: Path
    split: str
    tokens: Tokens
    """All tokens of the split, 1-D, uint16 or int32."""
    documents: np.ndarray
    """First token of each document and, last, the number of tokens: (documents + 1,) int64."""
    meta: Mapping[str, Any]
    """The whole of `dataset.json`."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id that the tokenizer can give."""
        return int(self.meta["vocab_size"])

    @property
    def eod(self) -> int | None:
        """The id of the token after each document, if documents end with one."""
        return self.meta.get("eod")

    @property
    def tokenizer(self) -> Path:
        """The tokenizer.json that made the tokens."""
        return self.folder / str(self.meta["tokenizer"])


def open_dataset(uri: str) -> TokenDataset:
    """The split that `uri` names: a dataset's directory or s3:// address, with `#validation` for what was held out.

    What is in S3 is fetched once for all processes of this machine. Of a dataset that EVERSTEP_CACHE_BYTES does not
    allow, everything but the tokens is; these are read by ranges.

    Raises DatasetError: no finished dataset there, files that do not fit `dataset.json`, a split without tokens.
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
    except StoreError as error:
        raise DatasetError(str(error)) from error
    meta = _read_manifest(folder / MANIFEST)
    told = meta[split]
    indexed = IndexedDataset(folder / told["prefix"], f"{far}/{told['prefix']}{TOKENS_SUFFIX}" if far else "")
    if len(indexed.tokens) != told["tokens"] or len(indexed) != told["documents"]:
        raise DatasetError(
            f"{folder / told['prefix']}.bin: {len(indexed.tokens)} tokens of {len(indexed)} documents, but {MANIFEST} "
            f"says {told['tokens']} of {told['documents']}; make the dataset again"
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
