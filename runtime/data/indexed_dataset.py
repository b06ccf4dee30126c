"""Megatron's indexed dataset: `NAME.bin` holds the tokens of all documents, `NAME.idx` where each begins.

`.idx`, little-endian: 9 bytes magic, u64 version 1, u8 dtype code, u64 N sequences, u64 D document indices, N int32
lengths in tokens, N int64 byte offsets into `.bin`, D int64 indices of the sequences at which documents begin (the
first is 0, the last N). The bytes equal those that Megatron-LM's `IndexedDatasetBuilder` and GPT-NeoX's
`MMapIndexedDatasetBuilder` write for the same documents. Here every document is one sequence.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from everstep.runtime.data.errors import DatasetError
from everstep.runtime.data.range_reads import RangedTokens, Tokens
from everstep.runtime.store import NoSuchKey, is_s3_uri, open_store
from everstep.runtime.system import atomic

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
CACHED_MAGIC = b"TNTIDX\x00\x00"
CACHED_HEADER = struct.Struct("<8sQQQQQQ")
CACHED_DTYPE = np.dtype(np.int32)
"""The smallest token type of that builder."""
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
CODES = {np.dtype(kind): code for code, kind in DTYPES.items()}
UINT16_BELOW = 65500
"""Vocabularies smaller than this are stored in 16 bits (Megatron-LM, `DType.optimal_dtype`)."""


def token_dtype(vocab_size: int) -> np.dtype:
    """The token type that Megatron's tools choose for a vocabulary of that size."""
    return np.dtype(np.uint16 if vocab_size < UINT16_BELOW else np.int32)


def write_index(path: Path, dtype: npt.DTypeLike, lengths: npt.ArrayLike) -> None:
    """Write `path` (the `.idx`) for documents of those lengths (tokens, in order). Atomic and durable."""
    kind = np.dtype(dtype)
    sizes = np.asarray(lengths, dtype="<i4")
    offsets = np.zeros(len(sizes), dtype="<i8")
    np.cumsum(sizes[:-1].astype("<i8") * kind.itemsize, out=offsets[1:])
    with atomic.replacing(path, durable=True) as file:
        file.write(HEADER.pack(MAGIC, VERSION, CODES[kind], len(sizes), len(sizes) + 1))
        file.write(sizes.tobytes())
        file.write(offsets.tobytes())
        file.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())


def write_cached_index(path: Path, dtype: npt.DTypeLike, lengths: npt.ArrayLike) -> None:
    """Write `path` in the older format of GPT-NeoX's `IndexedDatasetBuilder` (--dataset-impl cached and lazy).

    Little-endian: 8 bytes magic, then u64 version 1, dtype code, bytes per token, N sequences, N sizes, D document
    indices; then int64: N + 1 dimension offsets, N + 1 offsets into `.bin` in tokens, N lengths, D document indices.
    """
    kind, sizes = np.dtype(dtype), np.asarray(lengths, dtype="<i8")
    count = len(sizes)
    offsets = np.zeros(count + 1, dtype="<i8")
    np.cumsum(sizes, out=offsets[1:])
    numbers = np.arange(count + 1, dtype="<i8")
    with atomic.replacing(path, durable=True) as file:
        file.write(CACHED_HEADER.pack(CACHED_MAGIC, VERSION, CODES[kind], kind.itemsize, count, count, count + 1))
        for array in (numbers, offsets, sizes, numbers):
            file.write(array.tobytes())


class IndexedWriter:
    """Writes documents one after another. The `.idx` is written last, if the `with` block ends without an error."""

    def __init__(self, prefix: Path, dtype: npt.DTypeLike) -> None:
        """`prefix` without suffix: `prefix.bin` and `prefix.idx` are written."""
        self.dtype = np.dtype(dtype)
        self._index = _with_suffix(prefix, "idx")
        self._file = _with_suffix(prefix, "bin").open("wb")
        self._lengths: list[int] = []

    def add(self, tokens: npt.ArrayLike | Sequence[int]) -> None:
        """Add one document. An empty document is left out, as by Megatron's writers."""
        array = np.asarray(tokens, dtype=self.dtype)
        if array.size:
            self._file.write(array.tobytes())
            self._lengths.append(array.size)

    def __enter__(self) -> "IndexedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        if kind is None:
            write_index(self._index, self.dtype, self._lengths)


class IndexedDataset:
    """An indexed dataset: `dataset[i]` is sequence i. Raises DatasetError if it is missing or invalid.

    A local dataset is mapped into memory. In an S3 store the index is read whole, and tokens by ranges.
    """

    def __init__(self, prefix: Path | str, data: str = "") -> None:
        """`prefix` is a path or s3:// address without suffix. `data` is the `.bin` if it is not beside the `.idx`."""
        index, data = f"{prefix}.idx", data or f"{prefix}.bin"
        raw = _read_index(index)
        code, count, documents = _read_header(index, raw)
        """Index of the first sequence of each document and, at the end, N: (documents + 1,)."""
        self.dtype = np.dtype(DTYPES[code])
        start = HEADER.size
        self.lengths: npt.NDArray[np.int32] = np.frombuffer(raw, "<i4", count, start)
        """Tokens of each sequence, (N,)."""
        self.offsets: npt.NDArray[np.int64] = np.frombuffer(raw, "<i8", count, start + 4 * count)
        """Byte at which each sequence begins, (N,)."""
        self.documents: npt.NDArray[np.int64] = np.frombuffer(raw, "<i8", documents, start + 12 * count)
        """Index of the first sequence of each document and, last, N: (documents + 1,)."""
        self.tokens: Tokens = _open_tokens(data, int(self.lengths.sum(dtype=np.int64)), self.dtype)
        """All tokens, one after another, 1-D."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        start = int(self.offsets[index]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.lengths[index])]


def _read_index(index: str) -> np.ndarray:
    """The bytes of an `.idx`."""
    if is_s3_uri(index):
        folder, _, name = index.rpartition("/")
        try:
            return np.frombuffer(open_store(folder, read_only=True).get(name), np.uint8)
        except NoSuchKey:
            raise _missing_error(index) from None
    if not os.path.isfile(index):
        raise _missing_error(index)
    return np.memmap(index, dtype=np.uint8, mode="r") if os.path.getsize(index) else np.empty(0, np.uint8)


def _open_tokens(data: str, count: int, dtype: np.dtype) -> Tokens:
    """The tokens of a `.bin` that must have `count` of them."""
    folder, _, name = data.rpartition("/")
    store = open_store(folder, read_only=True) if is_s3_uri(data) else None
    if store:
        size = next((entry.size for entry in store.list(name) if entry.key == name), None)
    else:
        size = os.path.getsize(data) if os.path.isfile(data) else None
    if size is None:
        raise _missing_error(data)
    if size != count * dtype.itemsize:
        expected_bytes = count * dtype.itemsize
        raise DatasetError(f"{data}: {size} bytes where its .idx says {expected_bytes}; the dataset is half-written")
    if store:
        return RangedTokens(store, name, count, dtype)
    return np.memmap(data, dtype=dtype, mode="r") if size else np.empty(0, dtype)


def _missing_error(file: str) -> DatasetError:
    return DatasetError(f"{file}: no such file; an indexed dataset is a .bin and an .idx")


def _read_header(path: str, raw: np.ndarray) -> tuple[int, int, int]:
    if len(raw) < HEADER.size or bytes(raw[:9]) != MAGIC:
        raise DatasetError(f"{path}: not a Megatron index (its first bytes are not MMIDIDX)")
    _, version, code, count, documents = HEADER.unpack(bytes(raw[: HEADER.size]))
    if version != VERSION or code not in DTYPES:
        raise DatasetError(f"{path}: version {version} with dtype code {code} is not one of Megatron's")
    expected_bytes = HEADER.size + 12 * count + 8 * documents
    if len(raw) != expected_bytes:
        raise DatasetError(f"{path}: {len(raw)} bytes where its header says {expected_bytes}; the index is cut off")
    return code, count, documents


def _with_suffix(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(f"{prefix.name}.{suffix}")
