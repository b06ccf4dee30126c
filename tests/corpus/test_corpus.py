"""The corpus step: what becomes a document, in which order, and what is refused."""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from lm_dataformat import Archive, Reader

from everstep.runtime.store import open_store
from everstep.steps.corpus import Config, archive
from everstep.steps.corpus.run import run
from everstep.steps.entry import Result, StepError
from tests.minio import MinIO


def make(tmp_path: Path, source: str, share: float = 0.0, **more: str) -> tuple[Result, dict, list[str], list[str]]:
    """Result, manifest, train texts, validation texts: read back by lm-dataformat itself."""
    config = Config(source=source, validation_share=share, store=str(tmp_path / "store"), **more)
    config.check()
    result = run(config)
    folder = Path(result.outputs["uri"])
    train, held_out = (read_back(folder / split) for split in ("train", "validation"))
    return result, json.loads((folder / "corpus.json").read_text()), train, held_out


def read_back(folder: Path) -> list[str]:
    """By lm-dataformat, which refuses an empty archive."""
    return [str(text) for text in Reader(str(folder)).stream_data()] if any(folder.iterdir()) else []


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def test_text_in_a_store_makes_the_corpus_that_it_makes_here(tmp_path: Path, s3: MinIO) -> None:
    store = open_store(s3.new_prefix())
    for name, data in {"a.jsonl": lines("one", "two"), "b.jsonl.gz": gzip.compress(lines("three"))}.items():
        (tmp_path / name).write_bytes(data)
        store.put(f"texts/{name}", data)
    here, *read = make(tmp_path, f"{tmp_path}/*.jsonl*")
    for source in (f"{store.uri}/texts/*.jsonl*", f"{store.uri}/texts"):
        there, *again = make(tmp_path / "again", source)
        assert read == again
        assert Path(there.outputs["uri"]).name == Path(here.outputs["uri"]).name


def test_every_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("one", "zwei\n/\u4e09 \U0001f642"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines("three")))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(lines("four")) + zstandard.compress(lines("five")))
    (tmp_path / "d.txt").write_text("six\nseven\n")
    _, meta, train, _ = make(tmp_path, str(tmp_path))
    assert train == ["one", "zwei\n/\u4e09 \U0001f642", "three", "four", "five", "six\nseven\n"]
    assert (meta["documents"], meta["bytes"]) == (6, sum(len(text.encode()) for text in train))


def test_an_archive_of_many_files_is_read_in_the_order_written(tmp_path: Path) -> None:
    writer = Archive(str(tmp_path / "in"))
    for number in range(12):
        writer.add_data(f"document {number}")
        writer.commit()
    writer.fh.close()
    _, _, train, _ = make(tmp_path, str(tmp_path / "in"))
    assert train == [f"document {number}" for number in range(12)]


def test_a_corpus_of_many_files_reads_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 10)
    texts = [f"document {number}" for number in range(25)]
    (tmp_path / "a.jsonl").write_bytes(lines(*texts))
    _, meta, train, _ = make(tmp_path, str(tmp_path / "a.jsonl"))
    assert train == texts
    assert len(meta["files"]["train"]) == 25


def test_exact_duplicates_and_empty_texts_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("x", "", "y", "x") + b"\n")
    _, meta, train, _ = make(tmp_path, str(tmp_path / "a.jsonl"))
    assert (train, meta["duplicates"], meta["empty"]) == (["x", "y"], 1, 1)


def test_the_held_out_share_is_chosen_by_hash_and_does_not_move(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(400)]
    (tmp_path / "a.jsonl").write_bytes(lines(*texts))
    (tmp_path / "b.jsonl").write_bytes(lines(*reversed(texts), "another"))
    _, _, train, held_out = make(tmp_path, str(tmp_path / "a.jsonl"), share=0.1)
    _, _, _, again = make(tmp_path, str(tmp_path / "b.jsonl"), share=0.1)
    assert sorted(train + held_out) == sorted(texts)
    assert 20 < len(held_out) < 60
    assert set(again) - {"another"} == set(held_out)


def test_a_small_corpus_still_holds_one_document_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("x", "y", "z"))
    _, meta, train, held_out = make(tmp_path, str(tmp_path / "a.jsonl"), share=0.0001)
    assert (len(train), len(held_out), meta["validation_documents"]) == (2, 1, 1)


def test_paragraphs_and_other_keys_are_text_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": ["one", "two"]}\n"bare"\n')
    _, _, train, _ = make(tmp_path, str(tmp_path / "a.jsonl"), text_key="body")
    assert train == ["one\n\ntwo", "bare"]


def test_the_same_input_gives_the_same_bytes_and_is_found_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("x", "y"))
    first, *_ = make(tmp_path, str(tmp_path / "a.jsonl"))
    os.utime(tmp_path / "a.jsonl", (1, 1))
    second, *_ = make(tmp_path, str(tmp_path / "a.jsonl"))
    assert "in the store already" in capsys.readouterr().err
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "elsewhere")
    third, *_ = make(tmp_path / "elsewhere", str(tmp_path / "elsewhere/a.jsonl"))
    files = [sorted(path.read_bytes() for path in Path(r.outputs["uri"]).rglob("*.*")) for r in (first, second, third)]
    assert first.outputs == second.outputs
    assert files[0] == files[1] == files[2]


def test_without_a_source_it_is_the_standard_library_and_its_topics(tmp_path: Path) -> None:
    result, meta, train, held_out = make(tmp_path, "", share=0.02)
    assert 5e6 < meta["bytes"] + meta["validation_bytes"] < 40e6
    assert len(held_out) > 0
    assert {"asyncio/events.py", "topics/assert"} <= set(meta["sources"])
    assert not [name for name in meta["sources"] if "site-packages" in name or "/test/" in name]
    assert result.summary.startswith(f"{len(train) + len(held_out)} documents  ")


@pytest.mark.parametrize(
    ("name", "content", "expected_text"),
    [
        ("a.jsonl", lines("x") + b'{"text": \n', "a.jsonl:2:10: not JSON"),
        ("a.jsonl", lines("x") + b'{"txt": "y"}\n', "a.jsonl:2: no key 'text' (there are: txt)"),
        ("a.jsonl", b'{"text": 5}\n', "a.jsonl:1: 'text' is int"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: half a surrogate pair"),
        ("a.jsonl", b"\xff\xfe\n", "a.jsonl:1:1: not UTF-8"),
        ("a.jsonl.gz", gzip.compress(lines("x"), mtime=0)[:-9], "a.jsonl.gz:"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz:1: the compressed data is damaged"),
        ("a.jsonl.zst", b"no zstd", "a.jsonl.zst: cut off at byte 7"),
        ("a.jsonl.zst", zstandard.compress(lines("x"))[:-1], "in the middle of a Zstandard frame"),
        ("a.jsonl.zst", b"no zstd at all", "a.jsonl.zst: no Zstandard frame at byte 0"),
        ("a.txt", b"ok\n\xff", "a.txt:2: not UTF-8"),
        ("a.parquet", b"PAR1", "a.parquet: not a Parquet file"),
        ("a.jsonl", b"", "it has no text"),
    ],
)
def test_bad_input_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, content: bytes, expected_text: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StepError) as error:
        make(tmp_path, str(tmp_path / name))
    assert expected_text in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.code == 2
    assert not list((tmp_path / "store").glob("corpora/*"))


@pytest.mark.parametrize("source", ["nothing/*.jsonl", "nothing.jsonl", ",", "s3://bucket/x"])
def test_a_source_that_matches_nothing_is_told_before_anything_is_made(tmp_path: Path, source: str) -> None:
    with pytest.raises(StepError, match="--source"):
        Config(source=source, store=str(tmp_path / "store")).check()
    assert not (tmp_path / "store").exists()


def test_a_single_document_cannot_be_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(StepError, match="a single document"):
        make(tmp_path, str(tmp_path / "a.txt"), share=0.1)


def as_process(*flags: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "everstep.steps.corpus", *flags], capture_output=True, text=True
    )


def test_the_process_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    completed = as_process("--source", str(tmp_path / "no.jsonl"), "--store", str(tmp_path / "store"))
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1)


def test_the_process_writes_its_outputs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines("x", "y"))
    outputs = tmp_path / "out"
    completed = as_process("--source", str(tmp_path), "--store", str(tmp_path / "s"), "--outputs", str(outputs))
    assert completed.returncode == 0, completed.stderr
    assert (outputs / "documents").read_text() == "1"
    assert Path((outputs / "uri").read_text(), "corpus.json").is_file()
    assert completed.stderr.splitlines()[-1] == "2 documents  0.0 MB"


SMALL_DISK = (
    "unshare",
    "-rm",
    "sh",
    "-c",
    'mount -t tmpfs -o size=300k tmpfs "$0" && "$@"; code=$?; find "$0"; exit $code',
)


def can_mount(folder: Path) -> bool:
    return subprocess.run([*SMALL_DISK, str(folder), "true"], capture_output=True).returncode == 0


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("no user namespaces here, so no small disk to fill")
    noise = io.StringIO()
    for _ in range(100):
        noise.write(json.dumps({"text": os.urandom(4000).hex()}) + "\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(noise.getvalue().encode()))
    source = str(tmp_path / "a.jsonl.gz")
    completed = as_process("--source", source, "--store", str(disk), prefix=(*SMALL_DISK, str(disk)))
    assert completed.returncode == 2, completed.stderr
    assert completed.stderr.splitlines()[-1].startswith("corpus: ")
    assert "Traceback" not in completed.stderr
    assert completed.stdout.split() == [str(disk), str(disk / "corpora")]
