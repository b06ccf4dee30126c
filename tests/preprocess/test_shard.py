"""What a task writes, and the index of it: the bytes that Megatron's and GPT-NeoX's builders write.

The expected bytes are put together here from the public description of both formats, number by number.
"""

import errno
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.data import IndexedDataset, write_cached_index, write_index
from everstep.runtime.store import Store, Unavailable, open_store
from everstep.runtime.text import extents
from everstep.steps.preprocess import workspace
from everstep.steps.preprocess.assemble import NOTHING_DROPPED, Source, assemble, kept_ranges
from everstep.steps.preprocess.cleaning import Cleaning, digest_of
from everstep.steps.preprocess.duplicates import Hashes, by_kind
from everstep.steps.preprocess.encoding import EncodingMethod, Recipe
from everstep.steps.preprocess.parts import SAMPLES, Part, Samples
from everstep.steps.preprocess.plan import shards
from everstep.steps.preprocess.shard import Job, ShardRefusal, ShardResult, shard_key, write_shard, write_shards
from everstep.steps.preprocess.vocabulary import train
from everstep.steps.preprocess.workspace import shelf
from tests.minio import MinIO

DOCUMENTS = ["ab", "", "\u00e9", "xyz"]
"""An empty one is left out."""
BYTES = [[97, 98], [0xC3, 0xA9], [120, 121, 122]]


def tokenize(folder: Path, documents: list, tasks: int = 1, **settings: object) -> tuple[Job, list[ShardResult]]:
    """Shards of documents whose tokens are their bytes."""
    file = folder / "a.jsonl"
    lines = (json.dumps(document if isinstance(document, dict) else {"text": document}) for document in documents)
    file.write_text("".join(line + "\n" for line in lines))
    (folder / "work").mkdir(exist_ok=True)
    job_settings = {"keys": ("text",), "recipe": Recipe(EncodingMethod.BYTES), "eod": 0, "dtype": "uint16", **settings}
    job = Job(uri=str(folder / "work"), **job_settings)  # type: ignore[arg-type]
    return job, [write_shard(job, shard, 0) for shard in shards("document", extents(str(file)), tasks)]


def sources(shard_results: list[ShardResult], split: str = "document", key: int = 0) -> list[Source]:
    splits_kept = [files for each in shard_results for files in each.splits if files.split == split]
    return [Source(files.parts[key], NOTHING_DROPPED) for files in splits_kept]


def parts_of(shard_result: ShardResult) -> tuple[Part, ...]:
    (split,) = shard_result.splits
    return split.parts


def mmap_index(code: int, item: int, lengths: list[int]) -> bytes:
    starts = [item * sum(lengths[:number]) for number in range(len(lengths))]
    count = len(lengths)
    return (
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, code, count, count + 1)
        + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *starts)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )


def cached_index(lengths: list[int]) -> bytes:
    """Codes and sizes are of int32, the only type that the older builder is asked for."""
    count = len(lengths)
    return (
        b"TNTIDX\0\0"
        + struct.pack("<QQQQQQ", 1, 4, 4, count, count, count + 1)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
        + struct.pack(f"<{count + 1}q", *(sum(lengths[:number]) for number in range(count + 1)))
        + struct.pack(f"<{count}q", *lengths)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )


@pytest.mark.parametrize("tasks", [1, 3, 50])
@pytest.mark.parametrize("eod", [None, 0])
@pytest.mark.parametrize(("dtype", "letter", "code"), [("uint16", "H", 8), ("int32", "i", 4)])
def test_the_bytes_are_those_of_the_format_whatever_the_number_of_tasks(
    tmp_path: Path, tasks: int, eod: int | None, dtype: str, letter: str, code: int
) -> None:
    job, shard_results = tokenize(tmp_path, DOCUMENTS, tasks, eod=eod, dtype=dtype)
    documents_with_ends = [document + ([] if eod is None else [eod]) for document in BYTES]
    tokens = [token for document in documents_with_ends for token in document]
    assemble(tmp_path / "new", np.dtype(dtype), job.uri, sources(shard_results), write_index)
    assert (tmp_path / "new.bin").read_bytes() == struct.pack(f"<{len(tokens)}{letter}", *tokens)
    lengths = [len(document) for document in documents_with_ends]
    assert (tmp_path / "new.idx").read_bytes() == mmap_index(code, np.dtype(dtype).itemsize, lengths)
    if dtype == "int32":
        assemble(tmp_path / "old", np.dtype(dtype), job.uri, sources(shard_results), write_cached_index)
        assert (tmp_path / "old.bin").read_bytes() == (tmp_path / "new.bin").read_bytes()
        assert (tmp_path / "old.idx").read_bytes() == cached_index(lengths)


@pytest.mark.parametrize("documents", [[], ["one"], DOCUMENTS * 20])
def test_megatron_cores_builder_writes_the_same_bytes_and_its_reader_reads_ours(
    tmp_path: Path, documents: list[str]
) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    torch = pytest.importorskip("torch")
    job, shard_results = tokenize(tmp_path, documents, 3)
    assemble(tmp_path / "ours", np.dtype("uint16"), job.uri, sources(shard_results))
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    tokens = [[*document.encode(), 0] for document in documents if document]
    for document in tokens:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()
    if tokens:
        assert [document.tolist() for document in indexed.IndexedDataset(str(tmp_path / "ours"))] == tokens


def test_each_key_gets_its_own_texts_and_documents_without_it_are_left_out(tmp_path: Path) -> None:
    documents = [{"a": "x", "b": "yy"}, {"b": "z"}, {"c": "w"}]
    job, (shard_result,) = tokenize(tmp_path, documents, keys=("b", "a"), eod=None)
    read = [np.fromfile(Path(job.uri, part.tokens_file), "<u2").tolist() for part in parts_of(shard_result)]
    assert read == [list(b"yyz"), list(b"x")]
    assert [(part.documents, part.having) for part in parts_of(shard_result)] == [(2, 2), (1, 1)]
    assert (shard_result.read, shard_result.having) == (3, (2, 1))


def test_broken_unicode_is_mended_when_asked(tmp_path: Path) -> None:
    broken = "na\u00c3\u00afve"
    job, (shard_result,) = tokenize(tmp_path, [broken, "whole"], cleaning=Cleaning(ftfy=True), eod=None)
    tokens = np.fromfile(Path(job.uri, parts_of(shard_result)[0].tokens_file), "<u2").tolist()
    assert tokens == list("na\u00efvewhole".encode())
    assert shard_result.mended == 1


def test_documents_beyond_the_limits_are_left_out_and_counted(tmp_path: Path) -> None:
    texts = ["a", "bb", "\u00e9\u00e9\u00e9", "dddd", "eeeee"]
    job, shard_results = tokenize(tmp_path, texts, 2, cleaning=Cleaning(shortest=2, longest=4), eod=None)
    lengths = assemble(tmp_path / "out", np.dtype("uint16"), job.uri, sources(shard_results))
    assert lengths.tolist() == [2, 6, 4]
    assert [sum(shard.dropped[reason] for shard in shard_results) for reason in ("too short", "too long")] == [1, 1]
    assert sum(shard.read for shard in shard_results) == 5


@pytest.mark.parametrize("tasks", [1, 5])
def test_what_is_held_out_depends_on_each_text_alone(tmp_path: Path, tasks: int) -> None:
    texts = [f"document {number}" for number in range(200)]
    job, shard_results = tokenize(tmp_path, texts, tasks, cleaning=Cleaning(held_out=0.25), eod=None)
    read = {}
    for split in ("document", "validation"):
        assemble(tmp_path / split, np.dtype("uint16"), job.uri, sources(shard_results, split))
        read[split] = [bytes(document.tolist()).decode() for document in IndexedDataset(tmp_path / split)]
    held_out = [text for text in texts if digest_of([text])[:8] < (1 << 62).to_bytes(8, "big")]
    assert 20 < len(held_out) < 80
    assert read == {"document": [text for text in texts if text not in held_out], "validation": held_out}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_ranges_between_documents_that_are_left_out_hold_the_others(documents: list[tuple[int, bool]]) -> None:
    lengths = np.array([length for length, _ in documents], np.int32)
    dropped = np.array([at for at, (_, out) in enumerate(documents) if out], np.uint32)
    tokens = [at for at, (length, _) in enumerate(documents) for _ in range(length)]
    tokens_kept = [token for start, end in kept_ranges(lengths, dropped) for token in tokens[start:end]]
    assert tokens_kept == [token for token in tokens if not documents[token][1]]


def test_documents_that_are_left_out_leave_no_trace_in_the_dataset(tmp_path: Path) -> None:
    texts = [f"text {number}" * number for number in range(1, 9)]
    job, (shard_result,) = tokenize(tmp_path, texts)
    (source,) = sources([shard_result])
    out = [0, 3, 4, 7]
    assemble(tmp_path / "less", np.dtype("uint16"), job.uri, [Source(source.part, np.array(out, np.uint32))])
    (tmp_path / "again").mkdir()
    job, again = tokenize(tmp_path / "again", [text for at, text in enumerate(texts) if at not in out])
    assemble(tmp_path / "right", np.dtype("uint16"), job.uri, sources(again))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"less.{suffix}").read_bytes() == (tmp_path / f"right.{suffix}").read_bytes()


def test_a_disk_that_is_full_while_shards_are_put_together_leaves_no_index(tmp_path: Path) -> None:
    job, shard_results = tokenize(tmp_path, DOCUMENTS * 20, 2)
    (tmp_path / "out.bin").symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        assemble(tmp_path / "out", np.dtype("uint16"), job.uri, sources(shard_results))
    assert error.value.errno == errno.ENOSPC
    assert not (tmp_path / "out.idx").exists()


def test_the_documents_that_are_shown_do_not_depend_on_the_tasks(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(100)]
    samples_shown = []
    for tasks in (1, 4):
        _, shard_results = tokenize(tmp_path, texts, tasks)
        samples = Samples()
        for shard in shard_results:
            for sample in shard.samples:
                samples.take(sample)
        samples_shown.append(samples.in_order())
    assert samples_shown[0] == samples_shown[1]
    assert [sample.texts[0] for sample in samples_shown[0]] == sorted(texts, key=lambda text: digest_of([text]))[
        :SAMPLES
    ]


def test_after_a_refused_text_no_further_shard_is_begun(tmp_path: Path) -> None:
    job, _ = tokenize(tmp_path, [])
    (tmp_path / "a.jsonl").write_text("no json\n" + '{"text": "x"}\n' * 100)
    first, *others = shards("document", extents(str(tmp_path / "a.jsonl")), 3)
    (refused_shard,) = write_shards(job, [first])
    assert isinstance(refused_shard, ShardRefusal)
    assert refused_shard.reason.startswith(f"{tmp_path}/a.jsonl:1:1: not JSON")
    assert list(write_shards(job, others)) == []


def test_a_finished_shard_is_taken_and_a_lost_one_is_made_again(tmp_path: Path) -> None:
    job, (first,) = tokenize(tmp_path, DOCUMENTS)
    (shard,) = shards("document", extents(str(tmp_path / "a.jsonl")), 1)
    tokens_file = Path(job.uri, parts_of(first)[0].tokens_file)
    before = tokens_file.stat().st_mtime_ns
    assert write_shard(job, shard, 1) == first
    assert tokens_file.stat().st_mtime_ns == before
    data = tokens_file.read_bytes()
    tokens_file.write_bytes(data[:-1])  # as after a power failure
    again = write_shard(job, shard, 2)
    assert again != first
    assert Path(job.uri, parts_of(again)[0].tokens_file).read_bytes() == data


def test_shards_in_a_store_are_those_of_a_folder_and_are_taken_again(tmp_path: Path, s3: MinIO) -> None:
    texts = [f"text {number} " * (number % 9) for number in range(60)]
    words, store = train(iter(texts), 300, "", True).json, open_store(s3.new_prefix())
    (tmp_path / "tokenizer.json").write_bytes(words)
    store.put("tokenizer.json", words)
    contents = []
    for number, uri in enumerate((str(tmp_path / "work"), store.uri)):
        tokenizer = f"{uri}/tokenizer.json" if number else str(tmp_path / "tokenizer.json")
        recipe, cleaning = Recipe(EncodingMethod.TIKTOKEN, tokenizer), Cleaning(held_out=0.3, unique=True)
        job, _ = tokenize(tmp_path, texts)
        job = replace(job, uri=uri, recipe=recipe, cleaning=cleaning)
        planned = shards("document", extents(str(tmp_path / "a.jsonl")), 3)
        shard_results = [write_shard(job, shard, 0) for shard in planned]
        assert [write_shard(job, shard, 1) for shard in planned] == shard_results
        for split in ("document", "validation"):
            assemble(tmp_path / f"{split}{number}", np.dtype("uint16"), uri, sources(shard_results, split))
        contents.append([(tmp_path / f"{name}{number}.bin").read_bytes() for name in ("document", "validation")])
        hashes = [
            Hashes(0, f"{uri}/{files.digests}", files.documents) for each in shard_results for files in each.splits
        ]
        assert sum(len(piece.hashes) // 16 for part in hashes for _, piece in by_kind(2, part)) == 60
    assert contents[0] == contents[1]
    assert all(contents[0])
    with shelf(tmp_path, store.uri) as uri:
        assert uri == store.uri
    assert not list(store.list(""))


def test_a_task_goes_on_while_the_store_does_not_take_its_progress(
    tmp_path: Path, s3: MinIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(uri: str) -> Store:
        raise Unavailable("no answer")

    store = open_store(s3.new_prefix())
    job, _ = tokenize(tmp_path, DOCUMENTS)
    (planned,) = shards("document", extents(str(tmp_path / "a.jsonl")), 1)
    monkeypatch.setattr(workspace, "open_shelf", no_answer)
    write_shard(replace(job, uri=store.uri), planned, 0)
    keys = [entry.key.rpartition(".")[2] for entry in store.list("")]
    assert "done" in keys
    assert "progress" not in keys


def test_a_finished_shard_in_a_store_is_made_again_without_its_files(tmp_path: Path, s3: MinIO) -> None:
    store = open_store(s3.new_prefix())
    job, _ = tokenize(tmp_path, DOCUMENTS)
    job = replace(job, uri=store.uri)
    (planned,) = shards("document", extents(str(tmp_path / "a.jsonl")), 1)
    first = write_shard(job, planned, 0)
    tokens = store.get(parts_of(first)[0].tokens_file)
    store.delete(parts_of(first)[0].tokens_file)
    again = write_shard(job, planned, 1)
    assert again != first
    assert store.get(parts_of(again)[0].tokens_file) == tokens
    assert write_shard(job, planned, 2) == again


def test_an_attempt_that_was_first_does_not_count_without_its_files(tmp_path: Path) -> None:
    """A killed driver's task may end after the next driver has removed what it wrote."""
    from everstep.steps.preprocess.shard import _commit

    job, (first,) = tokenize(tmp_path, DOCUMENTS)
    (planned,) = shards("document", extents(str(tmp_path / "a.jsonl")), 1)
    done_file = Path(job.uri, f"{shard_key(planned)}.done")
    done_bytes = done_file.read_bytes()
    for name in first.splits[0].files():
        Path(job.uri, name).unlink()
    second = write_shard(job, planned, 1)
    done_file.write_bytes(done_bytes)
    assert _commit(open_store(job.uri), job, planned, Path(job.uri), second) == second
    assert write_shard(job, planned, 2) == second


def test_of_two_attempts_of_a_shard_one_counts_and_the_others_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everstep.steps.preprocess import shard as module

    job, (first,) = tokenize(tmp_path, DOCUMENTS)
    (planned,) = shards("document", extents(str(tmp_path / "a.jsonl")), 1)
    answers = iter([lambda *_: None, module._read_committed])  # the other attempt was not done when this one began
    monkeypatch.setattr(module, "_read_committed", lambda *arguments: next(answers)(*arguments))
    assert write_shard(job, planned, 1) == first
    files = sorted(path.name for path in Path(job.uri).iterdir())
    key, (part,) = shard_key(planned), parts_of(first)
    assert files == [part.tokens_file, part.lengths_file, f"{key}.done", f"{key}.progress"]
