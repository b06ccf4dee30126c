"""Processes that read, parse and encode an equal share of the lines each, and write nothing: the tokenizer's limit."""

import sys
from functools import partial
from multiprocessing import get_context

from runtime.text import Reader, extents
from steps.preprocess.encoding import How, Recipe, encoder
from steps.preprocess.plan import Shard, shards


def tokens_of(tokenizer: str, shard: Shard) -> int:
    """Tokens in a shard, with one at the end of each document."""
    encode, reader, count = encoder(Recipe(How.TIKTOKEN, tokenizer)).encode, Reader(("text",)), 0
    for piece in shard.pieces:
        for (text,) in reader.read(piece):
            ids = encode(text or "")
            count += len(ids) + bool(len(ids))
    return count


if __name__ == "__main__":
    file, tokenizer, _, cores = sys.argv[1:]
    planned = shards("text", extents(file), int(cores) * 4)
    with get_context("spawn").Pool(int(cores)) as pool:
        print(sum(pool.imap_unordered(partial(tokens_of, tokenizer), planned)))
