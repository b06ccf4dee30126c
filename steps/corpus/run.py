"""From sources to `<store>/corpora/<digest of input and settings>/` with `train/`, `validation/` and `corpus.json`."""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.runtime.data import data_folder
from everstep.steps.corpus.archive import ArchiveWriter, Split
from everstep.steps.corpus.config import SINGLE, Config
from everstep.steps.corpus.sources import Source, find, from_files, standard_library
from everstep.steps.entry import Result, StepError
from everstep.steps.progress import Progress

MANIFEST = "corpus.json"
FORMAT = 2
"""Incremented when the same input and settings give another corpus than before."""
_MOST_LISTED = 1000


@dataclass
class Counts:
    """Counts of the input's documents."""

    duplicates: int = 0
    empty: int = 0
    smallest: int = 1 << 64
    """The smallest document hash, 64 bits."""


def run(config: Config) -> Result:
    """Make the corpus, or find that it exists. Raises StepError for input that cannot be read."""
    sources = from_files(find(config.source), config.text_key) if config.source else standard_library()
    settings = {"text_key": config.text_key, "validation_share": config.validation_share}
    digest = _digest(sources, settings)
    key = f"corpora/{digest}"
    meta = data_folder.find_manifest(config.store, key, MANIFEST)
    if meta is None:
        meta = _make(config, sources, settings, key)
    else:
        print(f"corpus {digest} is in the store already", file=sys.stderr)
    return Result(
        summary=f"{meta['documents'] + meta['validation_documents']} documents  "
        f"{(meta['bytes'] + meta['validation_bytes']) / 1e6:.1f} MB",
        outputs={"uri": data_folder.data_uri(config.store, key), "documents": str(meta["documents"])},
        facts={name: value for name, value in meta.items() if name not in ("files", "sources")},
    )


def _digest(sources: list[Source], settings: dict[str, Any]) -> str:
    """Digest of the input's names and contents and of the settings: 16 hexadecimal digits."""
    total, bytes_done, progress = sum(source.size for source in sources), 0, Progress()
    digests = []
    for source in sources:
        progress.say(f"looking at {source.name}: {bytes_done / 1e6:.0f} of {total / 1e6:.0f} MB")
        digests.append((source.name, source.digest()))
        bytes_done += source.size
    return hashlib.sha256(json.dumps([FORMAT, settings, digests]).encode()).hexdigest()[:16]


def _make(config: Config, sources: list[Source], settings: dict[str, Any], key: str) -> dict[str, Any]:
    with data_folder.draft(config.store, key, MANIFEST) as draft:
        place = draft.folder.parent
        need, free = sum(source.size for source in sources) // 2, shutil.disk_usage(place).free
        if free < need:
            raise StepError(
                f"{place}: {free / 1e6:.0f} MB free, about {need / 1e6:.0f} MB needed; "
                "free some, or choose another --store"
            )
        share = round(config.validation_share * (1 << 64))
        train, validation, counts = _write(draft.folder, sources, share)
        if config.validation_share and train.documents > 1 and not validation.documents:
            # A small corpus: no hash falls into the share, so the document with the smallest hash is held out.
            train, validation, counts = _write(draft.folder, sources, counts.smallest + 1)
        _refuse_useless(config, train, validation)
        meta = {
            "version": 1,
            "documents": train.documents,
            "bytes": train.bytes,
            "validation_documents": validation.documents,
            "validation_bytes": validation.bytes,
            "files": {"train": train.files, "validation": validation.files},
            "duplicates": counts.duplicates,
            "empty": counts.empty,
            "sources": [source.name for source in sources[:_MOST_LISTED]],
            "settings": settings,
        }
        draft.commit(meta)
    return meta


def _refuse_useless(config: Config, train: Split, validation: Split) -> None:
    if not train.documents + validation.documents:
        raise StepError(f"{config.source}: it has no text")
    if not train.documents:
        raise StepError(f"--validation-share {config.validation_share}: all documents are held out; give a smaller one")
    if config.validation_share and not validation.documents:
        raise StepError(f"{config.source}: {SINGLE}")


def _write(folder: Path, sources: list[Source], share: int) -> tuple[Split, Split, Counts]:
    """Write both archives; documents whose hash is below `share` are held out."""
    counts, digests_seen, progress, bytes_done = Counts(), set[bytes](), Progress(), 0
    with ArchiveWriter(folder / "train") as train, ArchiveWriter(folder / "validation") as validation:
        for number, source in enumerate(sources):
            for text in source.texts():
                data = text.encode()
                if not data:
                    counts.empty += 1
                    continue
                digest = hashlib.sha256(data).digest()
                if digest in digests_seen:
                    counts.duplicates += 1
                    continue
                digests_seen.add(digest)
                value = int.from_bytes(digest[:8], "big")
                counts.smallest = min(counts.smallest, value)
                (validation if value < share else train).add(text, len(data), source.name)
            bytes_done += source.size
            progress.say(f"{number + 1} of {len(sources)} files  {bytes_done / 1e6:.1f} MB")
    return train.split, validation.split, counts
