"""Tokens as an array, or of an S3 object that is read by ranges on demand, in bounded memory."""

from collections import OrderedDict
from typing import Any, Protocol

import numpy as np

from everstep.runtime.data.errors import DatasetError
from everstep.runtime.store import NoSuchKey, Store

BLOCK_BYTES, BLOCKS = 256 << 10, 256
"""At most 64 MB in total. A sample of 4096 tokens is 8 KiB, so a block costs little more than its request."""


class Tokens(Protocol):
    """A sequence of tokens, 1-D: an array, or an object that is read like one."""

    @property
    def dtype(self) -> np.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any:
        """An array for a slice; one token for an integer."""
        ...


class RangedTokens:
    """1-D, like the array of a mapped local file: `len`, `[start:end]`, `[i]`, `dtype`.

    Caches the most recently used blocks. Reading raises DatasetError if the object was removed, StoreError if the store
    does not answer.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        tokens: int,
        dtype: np.dtype,
        block_bytes: int = BLOCK_BYTES,
        blocks: int = BLOCKS,
    ) -> None:
        """The object holds `tokens` tokens of that type."""
        self.dtype = dtype
        self._store, self._key, self._count = store, key, tokens
        self._block_bytes, self._max_blocks = block_bytes, blocks
        self._cache: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: slice | int) -> np.ndarray:
        """A copy of a slice (without a step), or one token."""
        if not isinstance(index, slice):
            at = int(index) + self._count * (index < 0)
            if not 0 <= at < self._count:
                raise IndexError(f"token {index} of {self._count}")
            return self[at : at + 1][0]
        start, end, step = index.indices(self._count)
        if step != 1:
            raise ValueError("tokens of a store are read without a step")
        item = self.dtype.itemsize
        return np.frombuffer(self._read(start * item, max(start, end) * item), self.dtype).copy()

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            number, offset = divmod(start, self._block_bytes)
            part = self._read_block(number)[offset : offset + end - start]
            if not part:
                raise DatasetError(f"{self._store.uri}/{self._key}: ends at byte {start}; the dataset is half-written")
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _read_block(self, number: int) -> bytes:
        block = self._cache.get(number)
        if block is None:
            try:
                block = self._store.get(self._key, number * self._block_bytes, self._block_bytes)
            except NoSuchKey:
                raise DatasetError(f"{self._store.uri}/{self._key}: was removed while it was read") from None
            self._cache[number] = block
        self._cache.move_to_end(number)
        while len(self._cache) > self._max_blocks:
            self._cache.popitem(last=False)
        return block
