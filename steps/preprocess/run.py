"""From a corpus to `<store>/datasets/<digest of corpus, tokenizer and settings>/`, made by Spark or found there."""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.data import finished
from steps.entry import Result, StepError
from steps.preprocess.config import Config
from steps.preprocess.plan import Shard, shards, task_count

if TYPE_CHECKING:
    from steps.preprocess.shard import Job, Written
    from steps.preprocess.vocabulary import Vocabulary

MANIFEST = "dataset.json"
FORMAT = 1
"""Raised when the same corpus and settings give another dataset than before."""
SPLITS = ("train", "validation")
PROOF_BYTES = 1 << 20
"""Text of the corpus on which the fast encoder must give what the tokenizer gives."""


def run(config: Config) -> Result:
    """Make the dataset, or find that it is there. Raises StepError for a corpus or tokenizer that is none."""
    if not config.input:
        raise StepError("--input is missing: give the folder that steps.corpus made")
    corpus = _corpus(config.corpus)
    digest = _digest(config, corpus)
    key = f"datasets/{digest}"
    meta = finished.find(config.store, key, MANIFEST)
    speed = ""
    if meta is None:
        meta, seconds = _make(config, corpus, key)
        speed = f"  {(meta['train']['bytes'] + meta['validation']['bytes']) / 1e6 / seconds:.1f} MB/s"
    else:
        print(f"dataset {digest} is in the store already", file=sys.stderr)
    tokens = meta["train"]["tokens"] + meta["validation"]["tokens"]
    uri = finished.uri(config.store, key)
    return Result(
        summary=f"{tokens / 1e6:.1f} M tokens{speed}",
        outputs={"uri": uri, "validation": f"{uri}#validation"},
        facts={**meta, "tokens": tokens},
    )


def _corpus(folder: Path) -> dict[str, Any]:
    path = folder / "corpus.json"
    try:
        meta = json.loads(path.read_bytes())
        named = [(split, file["name"], int(file["line_bytes"])) for split in SPLITS for file in meta["files"][split]]
    except (ValueError, KeyError, TypeError):
        raise StepError(f"{path}: not the manifest of a corpus; make it again with python -m steps.corpus") from None
    for split, name, _ in named:
        if not (folder / split / name).is_file():
            raise StepError(f"{folder / split / name}: missing, though corpus.json names it; make the corpus again")
    return meta


def _digest(config: Config, corpus: dict[str, Any]) -> str:
    """Of everything that changes the tokens, and of nothing else: 16 hexadecimal digits."""
    from steps.preprocess.vocabulary import tokenizer_file

    wanted: dict[str, Any] = {"format": FORMAT, "eod": config.eod_token, "append_eod": config.append_eod}
    wanted["corpus"] = hashlib.sha256((config.corpus / "corpus.json").read_bytes()).hexdigest()
    if config.tokenizer:
        file = tokenizer_file(config.tokenizer)
        beside = file.with_name("tokenizer_config.json")
        wanted["tokenizer"] = [
            hashlib.sha256(path.read_bytes()).hexdigest() for path in (file, beside) if path.is_file()
        ]
    else:
        wanted["vocab_size"] = config.vocab_size
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]


def _make(config: Config, corpus: dict[str, Any], key: str) -> tuple[dict[str, Any], float]:
    """The dataset and the seconds that Spark's job took."""
    from runtime.data import token_dtype
    from steps.preprocess.assemble import assemble
    from steps.preprocess.shard import Job

    vocabulary = _vocabulary(config, corpus)
    dtype = token_dtype(vocabulary.size)
    with finished.draft(config.store, key, MANIFEST) as draft:
        (draft.folder / "tokenizer.json").write_bytes(vocabulary.json)
        work = draft.folder / "shards"
        work.mkdir()
        encoder = _proven(config, corpus, vocabulary)
        job = Job(str(work), str(draft.folder / "tokenizer.json"), encoder, vocabulary.eod, dtype.str)
        print(f"starting Spark on {config.spark_master}, tokenizing with {encoder}", file=sys.stderr)
        written, seconds = _tokenize(config, _plan(config, corpus), job, corpus)
        told: dict[str, Any] = {}
        for split in SPLITS:
            parts = [part for part in written if part.shard.startswith(f"{split}-")]
            assemble(draft.folder / split, dtype, parts)
            told[split] = {
                "prefix": split,
                "documents": sum(part.documents for part in parts),
                "tokens": sum(part.tokens for part in parts),
                "bytes": sum(part.bytes for part in parts),
            }
        for path in work.iterdir():
            path.unlink()
        work.rmdir()
        meta = {
            "version": 1,
            **told,
            "tokenizer": "tokenizer.json",
            "vocab_size": vocabulary.size,
            "eod": vocabulary.eod,
            "dtype": dtype.name,
            "corpus": config.corpus.name,
        }
        draft.commit(meta)
    return meta, seconds


def _vocabulary(config: Config, corpus: dict[str, Any]) -> "Vocabulary":
    from steps.preprocess import vocabulary

    if config.tokenizer:
        return vocabulary.load(config.tokenizer, config.eod_token, config.append_eod)
    print(f"training a byte-level BPE of {config.vocab_size} tokens on the corpus", file=sys.stderr)
    texts = vocabulary.sample(corpus["files"]["train"], config.corpus / "train")
    return vocabulary.train(texts, config.vocab_size, config.eod_token, config.append_eod)


def _proven(config: Config, corpus: dict[str, Any], vocabulary: "Vocabulary") -> str:
    """The name of the encoder that is fastest and right."""
    from steps.preprocess.encoding import make_encoder
    from steps.preprocess.vocabulary import sample

    texts = sample(corpus["files"]["train"], config.corpus / "train", PROOF_BYTES)
    return make_encoder(vocabulary.json.decode(), texts).name


def _plan(config: Config, corpus: dict[str, Any]) -> list[Shard]:
    planned = []
    for split in SPLITS:
        folder = config.corpus / split
        files = [(str(folder / file["name"]), file["line_bytes"]) for file in corpus["files"][split]]
        total = sum(size for _, size in files)
        count = config.tasks if config.tasks and split == "train" else task_count(total, _cores(config.spark_master))
        planned += shards(split, files, count)
    return planned


def _cores(master: str) -> int:
    inside = master.removeprefix("local").strip("[]")
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0)) if inside else 1


def _tokenize(
    config: Config, planned: list[Shard], job: "Job", corpus: dict[str, Any]
) -> tuple[list["Written"], float]:
    """Run the planned shards on Spark, one task each; what they wrote, in order, and the seconds that took."""
    from functools import partial

    from steps.preprocess.session import failures, spark
    from steps.preprocess.shard import write_shards

    if not planned:
        return [], 1.0
    documents = corpus["documents"] + corpus["validation_documents"]
    with spark(config.spark_master) as context, failures(job.folder):
        started = time.monotonic()
        with _progress(Path(job.folder), documents, started):
            written = context.parallelize(planned, len(planned)).mapPartitions(partial(write_shards, job)).collect()
        return written, time.monotonic() - started


@contextmanager
def _progress(folder: Path, documents: int, started: float) -> Iterator[None]:
    """Say twice a second how far the tasks are."""
    from steps.preprocess.shard import COUNTS

    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(0.5):
            counts = [path.read_bytes() for path in folder.glob("*.progress")]
            done = [COUNTS.unpack(data) for data in counts if len(data) == COUNTS.size]
            seen, tokens, size = (sum(column) for column in zip(*done, strict=True)) if done else (0, 0, 0)
            rate = size / 1e6 / (time.monotonic() - started)
            if seen:
                print(f"{seen} of {documents} documents  {tokens / 1e6:.1f} M tokens  {rate:.1f} MB/s", file=sys.stderr)

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
