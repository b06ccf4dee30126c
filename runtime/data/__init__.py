"""Token datasets in Megatron's indexed format, the order in which training reads them, and finished data in a store.

Start with `dataset`.
"""

from everstep.runtime.data.dataset import TokenDataset, open_dataset
from everstep.runtime.data.errors import DatasetError
from everstep.runtime.data.indexed import (
    CACHED_DTYPE,
    IndexedDataset,
    IndexedWriter,
    token_dtype,
    write_cached_index,
    write_index,
)
from everstep.runtime.data.ranged import RangedTokens, Tokens
from everstep.runtime.data.sampler import Sampler, sample_count

__all__ = [
    "CACHED_DTYPE",
    "DatasetError",
    "IndexedDataset",
    "IndexedWriter",
    "RangedTokens",
    "Sampler",
    "TokenDataset",
    "Tokens",
    "open_dataset",
    "sample_count",
    "token_dtype",
    "write_cached_index",
    "write_index",
]
