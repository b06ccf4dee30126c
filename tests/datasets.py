"""A token dataset for tests, made without Spark."""

import json
from pathlib import Path

import numpy as np

from everstep.runtime.data import IndexedWriter


def write_dataset(folder: Path) -> str:
    """About 60 samples of 16 tokens below 50, always the same; returns its path."""
    folder.mkdir()
    order = np.random.default_rng(0)
    meta: dict[str, object] = {"version": 1, "tokenizer": "tokenizer.json", "vocab_size": 50, "dtype": "uint16"}
    for split, documents in (("train", 10), ("validation", 2)):
        with IndexedWriter(folder / split, np.uint16) as writer:
            for _ in range(documents):
                writer.add(order.integers(0, 50, 97))
        meta[split] = {"prefix": split, "documents": documents, "tokens": documents * 97}
    (folder / "dataset.json").write_text(json.dumps(meta))
    return str(folder)
