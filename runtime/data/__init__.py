"""Token datasets in Megatron's indexed format, the order and shares in which training reads data, finished data in a
store.

Start with `dataset`.
"""

from everstep.runtime.data.dataset import TokenDataset, open_dataset
from everstep.runtime.data.errors import DatasetError
from everstep.runtime.data.indexed_dataset import (
    CACHED_DTYPE,
    IndexedDataset,
    IndexedWriter,
    token_dtype,
    write_cached_index,
    write_index,
)
from everstep.runtime.data.range_reads import RangedTokens, Tokens
from everstep.runtime.data.sampler import Sampler, mix_seed, sample_count
from everstep.runtime.data.shares import Part, divide, parts_of

__all__ = [
    "CACHED_DTYPE",
    "DatasetError",
    "IndexedDataset",
    "IndexedWriter",
    "Part",
    "RangedTokens",
    "Sampler",
    "TokenDataset",
    "Tokens",
    "divide",
    "mix_seed",
    "open_dataset",
    "parts_of",
    "sample_count",
    "token_dtype",
    "write_cached_index",
    "write_index",
]
