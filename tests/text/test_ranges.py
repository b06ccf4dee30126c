"""Ranges of files: every document exactly once, wherever the cuts fall, in every format."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from everstep.runtime.text import DocumentReader, TextError, borders, documents, extents, find_files, piece_of


@pytest.fixture(autouse=True)
def every_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files have borders too."""
    monkeypatch.setattr(borders, "BORDER_SPACING", 1)


texts = st.lists(st.text('ab\u00e9\U0001f642 \r\n"\\', max_size=8), max_size=12)
any_cuts = st.lists(st.integers(0, 400), max_size=6)
FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def line(text: str, ascii_only: bool = False) -> bytes:
    return json.dumps({"id": 7, "text": text}, ensure_ascii=ascii_only).encode() + b"\n"


def read(path: Path, cuts: Sequence[int] = (), key: str = "text") -> list[str | None]:
    """What readers of the ranges between the cuts read together."""
    texts = []
    for extent in extents(str(path)):
        if extent.borders is None:
            ends = sorted({0, extent.size, *(min(cut, extent.size) for cut in cuts)})
        else:
            ends = sorted({0, extent.size, *(extent.borders[cut % len(extent.borders)] for cut in cuts)})
        for start, end in pairwise(ends):
            texts += [text for (text,) in DocumentReader((key,)).read(piece_of(extent, start, end))]
    return texts


@given(texts, any_cuts, st.booleans(), st.booleans(), st.booleans())
@FIXTURE
def test_lines_are_read_once_and_in_order(
    tmp_path: Path, texts: list[str], cuts: list[int], windows: bool, has_end: bool, gaps: bool
) -> None:
    data = (b"\n\n" if gaps else b"").join(line(text) for text in texts)
    data = data.replace(b"}\n", b"}\r\n") if windows else data
    (tmp_path / "a.jsonl").write_bytes(data if has_end else data.rstrip(b"\r\n"))
    assert read(tmp_path / "a.jsonl", cuts) == texts


@given(texts, any_cuts, st.lists(st.integers(1, 60), min_size=1, max_size=8), st.booleans())
@FIXTURE
def test_zstandard_frames_may_end_anywhere(
    tmp_path: Path, texts: list[str], cuts: list[int], frames: list[int], checksum: bool
) -> None:
    data, packed = b"".join(map(line, texts)), b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    compressor = zstandard.ZstdCompressor(write_checksum=checksum)
    while data:
        size = frames[len(packed) % len(frames)]
        packed, data = packed + compressor.compress(data[:size]), data[size:]
    (tmp_path / "a.jsonl.zst").write_bytes(packed)
    assert read(tmp_path / "a.jsonl.zst", cuts) == texts


def bgzf(data: bytes, size: int) -> bytes:
    """Blocked gzip with blocks of that many bytes, and the empty one at the end."""
    blocks = []
    for part in [*(data[at : at + size] for at in range(0, len(data), size)), b""]:
        deflate = zlib.compressobj(wbits=-15)
        packed = deflate.compress(part) + deflate.flush()
        head = struct.pack("<4sIBBHBBHH", b"\x1f\x8b\x08\x04", 0, 0, 255, 6, 66, 67, 2, len(packed) + 25)
        blocks.append(head + packed + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks)


@given(texts, any_cuts, st.integers(1, 60))
@FIXTURE
def test_blocked_gzip_is_cut_between_its_blocks(tmp_path: Path, texts: list[str], cuts: list[int], size: int) -> None:
    data = b"".join(map(line, texts))
    (tmp_path / "a.jsonl.gz").write_bytes(bgzf(data, size))
    (extent,) = extents(str(tmp_path / "a.jsonl.gz"))
    assert extent.borders is not None
    assert len(extent.borders) == 2 + -(-len(data) // size)
    assert read(tmp_path / "a.jsonl.gz", cuts) == texts


TEXTS = ["one", "zwei\n\u4e09 \U0001f642", "", "four " * 1000]


def packed_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(2):
            data = b"".join(zstandard.compress(line(text)) for text in TEXTS[2 * number : 2 * number + 2])
            member = tarfile.TarInfo(f"part{number}.jsonl.zst")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def packed_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", b"".join(map(line, TEXTS[:3])))
        archive.writestr("folder/b.txt", TEXTS[3])
    return out.getvalue()


def packed_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "text": TEXTS}), out, row_group_size=1)
    return out.getvalue()


FORMATS: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: b"".join(map(line, TEXTS)),
    "a.jsonl.gz": lambda: gzip.compress(line(TEXTS[0])) + gzip.compress(b"".join(map(line, TEXTS[1:]))),
    "a.json.gz": lambda: gzip.compress(b"".join(map(line, TEXTS))),
    "a.jsonl.zst": lambda: b"".join(zstandard.compress(line(text)) for text in TEXTS),
    "a.jsonl.zst.tar": packed_tar,
    "a.zip": packed_zip,
    "a.parquet": packed_parquet,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("cuts", [(), (1, 2, 3)])
def test_every_format_gives_the_same_documents(tmp_path: Path, name: str, cuts: tuple[int, ...]) -> None:
    (tmp_path / name).write_bytes(FORMATS[name]())
    assert read(tmp_path / name, cuts) == TEXTS


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert read(tmp_path / "a.txt") == ["one\ntwo\n"]


def test_several_keys_are_read_in_one_pass_and_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": ["y", "z"]}\n{"b": "w"}\n{"c": 1}\n')
    (extent,) = extents(str(tmp_path / "a.jsonl"))
    reader = DocumentReader(("a", "b"), is_required=False)
    assert list(reader.read(piece_of(extent, 0, extent.size))) == [("x", "y\n\nz"), (None, "w"), (None, None)]
    assert reader.consumed_bytes == extent.size


def refusal_of(path: Path, cuts: Sequence[int] = ()) -> str:
    with pytest.raises(TextError) as error:
        read(path, cuts)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{path.parent}/")


@pytest.mark.parametrize("cuts", [(), (5,), (30,), (5, 30, 60)])
def test_a_torn_line_is_told_by_file_line_and_column_in_whichever_range(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    (tmp_path / "a.jsonl").write_bytes(line("x") + b"\n" + line("y") + b'{"text": "cut o')
    assert refusal_of(tmp_path / "a.jsonl", cuts).startswith("a.jsonl:4:10: not JSON (Unterminated string")


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl.gz", "a.jsonl.zst.tar", "a.zip", "a.parquet"])
@pytest.mark.parametrize("missing_bytes", [1, 9])
def test_a_file_that_is_cut_off_is_told_by_name(tmp_path: Path, name: str, missing_bytes: int) -> None:
    data = FORMATS[name]()
    (tmp_path / name).write_bytes(data[: len(packed_tar()) // 8] if name.endswith("tar") else data[:-missing_bytes])
    assert refusal_of(tmp_path / name).startswith(name)


def test_bytes_that_changed_in_a_compressed_file_are_told_by_line(tmp_path: Path) -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(line("x" * 50 + "y" * 50)))
    packed[-1] ^= 1
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(line("x")) + packed)
    assert refusal_of(tmp_path / "a.jsonl.zst", (1,)).startswith("a.jsonl.zst:2: the compressed data is damaged")


def test_bad_documents_can_be_skipped_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line("x") + b'{"text": 5}\n{"text": "\\ud800"}\nno\n\xff\n' + line("y"))
    (extent,) = extents(str(tmp_path / "a.jsonl"))
    reader = DocumentReader(("text",), skip_bad=True)
    assert [text for (text,) in reader.read(piece_of(extent, 0, extent.size))] == ["x", "y"]
    assert reader.skipped == 4


def names(patterns: str) -> list[str]:
    return [name.rpartition("/")[2] for name in find_files(patterns, "--input")]


def test_files_are_found_by_name_pattern_folder_and_between_commas_in_natural_order(tmp_path: Path) -> None:
    for name in ("d/data_10.jsonl", "d/data_2.jsonl", "d/readme.md", "a,b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    patterns = f"{tmp_path}/d/data_10.jsonl,{tmp_path}/d"
    assert names(patterns) == ["data_10.jsonl", "data_2.jsonl"]
    assert names(f"{tmp_path}/d/*.jsonl") == ["data_2.jsonl", "data_10.jsonl"]
    assert names(f"{tmp_path}/a,b.txt") == ["a,b.txt"]


@pytest.mark.parametrize("patterns", ["gs://bucket/a.jsonl", "nothing.jsonl", "", "{folder}/readme.md"])
def test_what_names_no_readable_file_is_refused_by_its_flag_or_name(tmp_path: Path, patterns: str) -> None:
    (tmp_path / "readme.md").write_text("x")
    with pytest.raises(TextError, match=r"--input|readme\.md: files of this kind are not read"):
        find_files(patterns.format(folder=tmp_path), "--input")


@pytest.mark.parametrize("cuts", [(), (70_000,), (10, 70_000, 150_000)])
def test_a_line_of_hundreds_of_megabytes_in_some_kilobytes_is_bad_and_never_whole_in_memory(
    cuts: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 1 << 16)
    long = line("a" * 200_000)
    for name, packed in (("x.jsonl.zst", zstandard.compress(line("b") + long + line("c"))),
                         ("x.jsonl", line("b") + long + line("c")), ("end.jsonl", line("b") + long[:-1])):  # fmt: skip
        path = tmp_path / name
        path.write_bytes(packed)
        with pytest.raises(TextError, match=rf"{name}:2: a line of more than 0 MiB; split or remove it"):
            read(path, cuts)
        reader = DocumentReader(("text",), skip_bad=True)
        (extent,) = extents(str(path))
        rows = list(reader.read(piece_of(extent, 0, extent.size)))
        assert rows == ([("b",)] if name == "end.jsonl" else [("b",), ("c",)])
        assert reader.skipped == 1


@pytest.mark.parametrize("size", [(1 << 16) - 100, (1 << 16) - len(line(""))])
def test_a_line_that_is_as_long_as_one_may_be_is_read(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 1 << 16)
    path = tmp_path / "x.jsonl"
    path.write_bytes(line("a" * size) + line("c"))
    assert read(path) == ["a" * size, "c"]
