"""Megatron's indexed format, against bytes computed by hand from its description."""

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.data import DatasetError, IndexedDataset, IndexedWriter, token_dtype, write_index

HEADER = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1)


def write(prefix: Path, documents: list[list[int]], dtype: str) -> None:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(document)


def test_two_documents_of_16_bits_are_these_bytes(tmp_path: Path) -> None:
    write(tmp_path / "d", [[1, 2, 3], [258]], "uint16")
    assert (tmp_path / "d.bin").read_bytes() == b"\x01\x00\x02\x00\x03\x00\x02\x01"
    assert (tmp_path / "d.idx").read_bytes() == (
        HEADER
        + b"\x08"  # uint16
        + b"\x02\x00\x00\x00\x00\x00\x00\x00"  # sequences
        + b"\x03\x00\x00\x00\x00\x00\x00\x00"  # document indices
        + b"\x03\x00\x00\x00\x01\x00\x00\x00"  # lengths
        + b"\x00\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00"  # byte offsets
        + struct.pack("<3q", 0, 1, 2)
    )


def test_one_document_of_32_bits_is_these_bytes(tmp_path: Path) -> None:
    write(tmp_path / "d", [[70000]], "int32")
    assert (tmp_path / "d.bin").read_bytes() == b"\x70\x11\x01\x00"
    assert (tmp_path / "d.idx").read_bytes() == HEADER + b"\x04" + struct.pack("<QQiqqq", 1, 2, 1, 0, 0, 1)


def test_no_documents_are_an_index_with_one_zero(tmp_path: Path) -> None:
    write(tmp_path / "d", [], "uint16")
    assert (tmp_path / "d.idx").read_bytes() == HEADER + b"\x08" + struct.pack("<QQq", 0, 1, 0)
    assert len(IndexedDataset(tmp_path / "d")) == 0


def test_a_document_without_tokens_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "d", [[1], [], [2]], "uint16")
    assert [list(document) for document in IndexedDataset(tmp_path / "d")] == [[1], [2]]


def test_a_writer_that_fails_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(OverflowError):
        write(tmp_path / "d", [[1], [-1]], "uint16")
    assert not (tmp_path / "d.idx").exists()


@pytest.mark.parametrize(
    ("size", "expected"), [(8192, "uint16"), (65499, "uint16"), (65500, "int32"), (200_000, "int32")]
)
def test_the_dtype_is_megatrons(size: int, expected: str) -> None:
    assert token_dtype(size) == np.dtype(expected)


@given(
    st.lists(st.lists(st.integers(0, 65499), max_size=20), max_size=20),
    st.sampled_from(["uint16", "int32", "int64"]),
)
def test_what_was_written_is_read(documents: list[list[int]], dtype: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "d")
        write(prefix, documents, dtype)
        read, nonempty = IndexedDataset(prefix), [document for document in documents if document]
        assert prefix.with_suffix(".idx").stat().st_size == 34 + 12 * len(nonempty) + 8 * (len(nonempty) + 1)
        assert read.dtype == np.dtype(dtype)
        assert [list(document) for document in read] == nonempty
        assert list(read.tokens[:]) == [token for document in nonempty for token in document]
        assert list(read.documents) == list(range(len(nonempty) + 1))


@pytest.mark.parametrize(
    ("break_it", "expected_text"),
    [
        (lambda path: path.with_suffix(".idx").write_bytes(b"TNTIDX\0\0" + bytes(40)), "not a Megatron index"),
        (lambda path: path.with_suffix(".idx").write_bytes(b""), "not a Megatron index"),
        (lambda path: path.with_suffix(".idx").write_bytes(path.with_suffix(".idx").read_bytes()[:-1]), "cut off"),
        (lambda path: path.with_suffix(".bin").write_bytes(b"\0"), "half-written"),
        (lambda path: path.with_suffix(".bin").unlink(), "no such file"),
    ],
)
def test_a_broken_dataset_is_refused_in_one_line(tmp_path: Path, break_it, expected_text: str) -> None:
    write(tmp_path / "d", [[1, 2], [3]], "uint16")
    break_it(tmp_path / "d")
    with pytest.raises(DatasetError, match=expected_text) as error:
        IndexedDataset(tmp_path / "d")
    assert "\n" not in str(error.value)


def test_an_index_from_lengths_is_that_of_the_writer(tmp_path: Path) -> None:
    write(tmp_path / "d", [[1, 2, 3], [4]], "uint16")
    write_index(tmp_path / "e.idx", "uint16", [3, 1])
    assert (tmp_path / "e.idx").read_bytes() == (tmp_path / "d.idx").read_bytes()
