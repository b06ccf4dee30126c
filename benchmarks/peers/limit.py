"""Processes that read, parse and encode an equal share of the lines each, and write nothing: the tokenizer's limit.

Prints the seconds that they took once all were ready, and the number of tokens.
"""

import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import numpy as np

from everstep.runtime.text import DocumentReader, extents
from everstep.steps.preprocess.encoding import EncodingMethod, Recipe, encoder
from everstep.steps.preprocess.plan import Shard, shards

_encode: dict[str, Callable[[str], np.ndarray]] = {}
"""This process's encoder."""


def make_encoder(tokenizer: str, all_are: Barrier) -> None:
    """Make the encoder, and wait until all processes have one."""
    _encode["text"] = encoder(Recipe(EncodingMethod.TIKTOKEN, tokenizer)).encode
    all_are.wait()


def tokens_of(shard: Shard) -> int:
    """Tokens in a shard, including one at the end of each document."""
    encode, reader, count = _encode["text"], DocumentReader(("text",)), 0
    for piece in shard.pieces:
        for (text,) in reader.read(piece):
            ids = encode(text or "")
            count += len(ids) + bool(len(ids))
    return count


if __name__ == "__main__":
    file, tokenizer, _, cores = sys.argv[1:]
    planned = shards("text", extents(file), int(cores) * 4)
    context = get_context("spawn")
    all_are = context.Barrier(int(cores) + 1)
    with context.Pool(int(cores), make_encoder, (tokenizer, all_are)) as pool:
        all_are.wait()
        started = time.monotonic()
        counted = sum(pool.imap_unordered(tokens_of, planned))
        print(time.monotonic() - started, counted)
