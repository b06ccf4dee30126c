"""megatron-core's IndexedDatasetBuilder, fed by a pool of processes that encode with tokenizers, line by line."""

import json
import sys
import warnings
from functools import lru_cache, partial
from importlib import import_module
from multiprocessing import Pool
from typing import Any

import numpy as np

CHUNK = 32
"""Lines that a process gets at a time."""


@lru_cache
def load_tokenizer(file: str) -> Any:
    """The tokenizer, loaded once in each process of the pool."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)


def encode(file: str, line: str) -> list[int]:
    """Encode one document."""
    ids = load_tokenizer(file).encode(json.loads(line)["text"]).ids
    return [*ids, load_tokenizer(file).token_to_id("<|endoftext|>")] if ids else []


if __name__ == "__main__":
    import torch

    indexed: Any = import_module("megatron.core.datasets.indexed_dataset")

    warnings.simplefilter("ignore")
    source, tokenizer, output, cores = sys.argv[1:]
    builder, count = indexed.IndexedDatasetBuilder(f"{output}.bin", dtype=np.uint16), 0
    with Pool(int(cores)) as pool, open(source) as lines:
        for ids in pool.imap(partial(encode, tokenizer), lines, CHUNK):
            if ids:
                builder.add_document(torch.tensor(ids), [len(ids)])
                count += len(ids)
    builder.finalize(f"{output}.idx")
    print(count)
