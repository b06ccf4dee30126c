"""What one Spark session proves of several jobs: they are run in this process, one after another."""

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from everstep.runtime.data import IndexedDataset, data_folder
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import Store, Unavailable, open_store
from everstep.steps.corpus import Config as CorpusConfig
from everstep.steps.corpus import archive
from everstep.steps.corpus.run import run as make_corpus
from everstep.steps.entry import StepError, disk_error_line
from everstep.steps.preprocess import Config, build, destination, prefix, session, workspace
from everstep.steps.preprocess.assemble import assemble
from everstep.steps.preprocess.cleaning import digest_of
from everstep.steps.preprocess.run import run
from everstep.steps.preprocess.vocabulary import train
from tests.minio import MinIO

TEXTS = [
    f"def function_{number}(a, b):\n    return a + {number * 7919} * b  # na\u00efve\n" * 9 for number in range(200)
]


@pytest.fixture(scope="module", autouse=True)
def one_session(minio: MinIO) -> Iterator[None]:
    """Commands find Spark started; its workers know the store."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in minio.environment.items():
            patch.setenv(name, value)
        with session.spark("local[2]", 2, 2) as context:
            patch.setattr(session, "spark", lambda *_: nullcontext(context))
            yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `a.jsonl` and `tokenizer.json`."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (folder / "tokenizer.json").write_bytes(train(iter(TEXTS), 400, "", True).json)
    return folder


def config(folder: Path, input_folder: Path, **more: object) -> Config:
    """Nothing is made outside of `folder`."""
    new_config = Config(
        tokenizer=str(input_folder / "tokenizer.json"),
        spark_master="local[2]",
        store=str(folder / "store"),
        outputs=str(folder / "outputs"),
    )
    new_config = replace(new_config, **more)  # type: ignore[arg-type]
    new_config.check()
    return new_config


def test_documents_are_mended_left_out_held_out_and_counted(inputs: Path, tmp_path: Path) -> None:
    """What stays of a text that comes often, in several tasks and in both splits, is its first document."""
    texts = [f"na\u00c3\u00afve {number % 70}" + " more" * (number % 40) for number in range(700)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    cleaning_flags = {"ftfy": True, "min_length": 15, "max_length": 150, "deduplicate": True, "validation_share": 0.25}
    files = {"input": str(tmp_path / "b.jsonl"), "output_prefix": str(tmp_path / "out/result")}
    result = run(config(tmp_path, inputs, **files, **cleaning_flags, tasks=5))
    mended = [text.replace("\u00c3\u00af", "\u00ef") for text in texts]
    fitting = [text for text in mended if 15 <= len(text) <= 150]
    unique = list(dict.fromkeys(fitting))
    held_out = [text for text in unique if digest_of([text])[:8] < (1 << 62).to_bytes(8, "big")]
    tokenizer = Tokenizer.from_file(str(inputs / "tokenizer.json"))
    for name, expected in (
        ("result_text", [text for text in unique if text not in held_out]),
        ("result_validation_text", held_out),
    ):
        assert expected
        read = IndexedDataset(tmp_path / f"out/{name}_document")
        assert [document.tolist() for document in read] == [tokenizer.encode(text).ids for text in expected]
    assert result.facts["dropped"] == {
        "unreadable": 0,
        "too short": sum(len(text) < 15 for text in mended),
        "too long": sum(len(text) > 150 for text in mended),
        "duplicate": len(fitting) - len(unique),
    }
    assert (result.facts["documents"], result.facts["mended"]) == (700, 700)
    assert result.outputs["validation"] == f"{tmp_path}/out/result_validation"


def test_a_corpus_in_a_store_is_read_where_it_is(inputs: Path, tmp_path: Path, s3: MinIO) -> None:
    settings = CorpusConfig(source=str(inputs / "a.jsonl"), validation_share=0.1, store=str(tmp_path / "corpora"))
    corpus, store = Path(make_corpus(settings).outputs["uri"]), open_store(s3.new_prefix())
    for path in corpus.rglob("*"):
        if path.is_file():
            store.put(f"{corpus.name}/{path.relative_to(corpus).as_posix()}", path)
    contents = []
    for number, uri in enumerate((str(corpus), f"{store.uri}/{corpus.name}")):
        result = run(config(tmp_path / str(number), inputs, input=uri))
        contents.append({path.name: path.read_bytes() for path in Path(result.outputs["uri"]).glob("*.[bi][id]*")})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 4
    store.delete(f"{corpus.name}/train/data_000000.jsonl.zst")
    with pytest.raises(StepError, match=r"train/data_000000\.jsonl\.zst: missing"):
        run(config(tmp_path / "2", inputs, input=f"{store.uri}/{corpus.name}"))


@pytest.mark.parametrize("cleaning_flags", [{}, {"deduplicate": True, "validation_share": 0.2, "max_length": 1000}])
def test_the_dataset_of_a_corpus_does_not_depend_on_the_number_of_tasks(
    inputs: Path, tmp_path: Path, cleaning_flags: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 10_000)  # several files
    settings = CorpusConfig(source=str(inputs / "a.jsonl"), validation_share=0.1, store=str(tmp_path / "corpora"))
    corpus = make_corpus(settings).outputs["uri"]
    contents = []
    for tasks in (1, 7):
        result = run(
            config(tmp_path / str(tasks), inputs, input=corpus, append_eod=True, tasks=tasks, **cleaning_flags)
        )
        contents.append({path.name: path.read_bytes() for path in Path(result.outputs["uri"]).iterdir()})
        assert result.facts["train"]["documents"] + result.facts["validation"]["documents"] == len(TEXTS)
    assert contents[0] == contents[1]


def test_a_torn_line_is_told_with_its_place_and_leaves_nothing(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.jsonl").write_bytes((inputs / "a.jsonl").read_bytes()[:-20])
    (tmp_path / "out").mkdir()
    files = {"input": str(tmp_path / "a.jsonl"), "output_prefix": str(tmp_path / "out/result")}
    with pytest.raises(StepError) as error:
        run(config(tmp_path, inputs, **files, tasks=3))
    assert str(error.value).startswith(f"{tmp_path}/a.jsonl:200:")
    assert "Traceback" not in capfd.readouterr().err
    assert not list((tmp_path / "out").iterdir())
    skipped = run(config(tmp_path, inputs, **files, tasks=3, on_error="skip"))
    assert (skipped.facts["documents"], skipped.facts["dropped"]["unreadable"]) == (199, 1)


def test_a_command_that_ends_while_files_get_their_names_is_taken_up(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"input": str(inputs / "a.jsonl"), "output_prefix": str(tmp_path / "out/result"), "append_eod": True}
    publish = destination._Folder.publish

    def interrupt_publish(self: destination._Folder, file: Path) -> None:
        if file.suffix == ".idx":
            raise KeyboardInterrupt
        publish(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(destination._Folder, "publish", interrupt_publish)
        with pytest.raises(KeyboardInterrupt):
            run(config(tmp_path, inputs, **files))
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file())
    assert names == ["result_preprocess.json", "result_text_document.bin"]
    with pytest.raises(StepError, match="give --force"):
        run(config(tmp_path, inputs, **files, ftfy=True))
    result = run(config(tmp_path, inputs, **files))
    assert result.facts["documents"] == len(IndexedDataset(tmp_path / "out/result_text_document")) == len(TEXTS)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of each file, when it was written and what is in it."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("is_same", [True, False])
def test_of_two_commands_under_one_prefix_the_first_to_finish_counts(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """The second one begins and ends while the first one's tasks run."""
    first = config(tmp_path, inputs, input=str(inputs / "a.jsonl"), output_prefix=str(tmp_path / "out/result"))
    second = first if is_same else replace(first, append_eod=True)
    written: list[dict[str, tuple[int, bytes]]] = []

    def build_after_the_second(*arguments: Any) -> build.BuildResult:
        monkeypatch.setattr(prefix, "build", build.build)
        run(second)
        written.append(contents(tmp_path / "out"))
        return build.build(*arguments)

    monkeypatch.setattr(prefix, "build", build_after_the_second)
    if is_same:
        assert run(first).facts["documents"] == len(TEXTS)
    else:
        with pytest.raises(StepError, match=r"result_text_document\.bin exists, made from other input or settings"):
            run(first)
    assert contents(tmp_path / "out") == written[0]
    assert len(list((tmp_path / "out").iterdir())) == len(written[0]) == 4


OF_TEXT = ("text_document.bin", "text_document.idx")


def test_a_tokenizer_is_written_over_by_force_only_and_forced_commands_leave_none_of_the_earlier_files(
    inputs: Path, tmp_path: Path
) -> None:
    out, files = tmp_path / "out", {"input": str(inputs / "a.jsonl"), "output_prefix": str(tmp_path / "out/result")}
    out.mkdir()
    (out / "result_tokenizer.json").write_text("mine")
    trains: dict[str, object] = {**files, "tokenizer": "", "vocab_size": 300, "validation_share": 0.2}
    with pytest.raises(StepError, match=r"result_tokenizer\.json exists, .* give --force"):
        run(config(tmp_path, inputs, **trains))
    assert (out / "result_tokenizer.json").read_text() == "mine"
    run(config(tmp_path, inputs, **trains, force=True))
    always = {f"result_{name}" for name in ("preprocess.html", "preprocess.json", *OF_TEXT)}
    of_validation = {f"result_validation_{name}" for name in OF_TEXT}
    assert set(contents(out)) == always | of_validation | {"result_tokenizer.json"}
    run(config(tmp_path, inputs, **files, tokenizer=str(out / "result_tokenizer.json"), force=True))
    assert set(contents(out)) == always | {"result_tokenizer.json"}, "a tokenizer that is given stays"
    run(config(tmp_path, inputs, **trains, force=True))
    run(config(tmp_path, inputs, **files, force=True))
    assert set(contents(out)) == always


@pytest.fixture
def clustered(s3: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store for output and shards, as of a step whose tasks run on a cluster."""
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(session.SUBMITTED, "0")
    return open_store(s3.new_prefix())


def done_shards(store: Store) -> list[str]:
    return [entry.key for entry in store.list("") if entry.key.endswith(".done")]


def no_answer(*_: object) -> None:
    raise Unavailable("no answer")


@pytest.fixture(scope="module")
def corpus(inputs: Path) -> str:
    settings = CorpusConfig(source=str(inputs / "a.jsonl"), validation_share=0.1, store=str(inputs / "corpora"))
    return make_corpus(settings).outputs["uri"]


@pytest.mark.parametrize("is_clustered", [True, False])
def test_an_outage_while_the_dataset_is_uploaded_loses_no_shard(
    inputs: Path,
    corpus: str,
    tmp_path: Path,
    clustered: Store,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    is_clustered: bool,
) -> None:
    if not is_clustered:
        monkeypatch.delenv(session.SUBMITTED)
    settings = config(tmp_path, inputs, input=corpus, store=clustered.uri)
    with monkeypatch.context() as patch:
        patch.setattr(data_folder.Draft, "commit", no_answer)
        with pytest.raises(Unavailable):
            run(settings)
    in_cache = [path.name for path in (tmp_path / "cache").rglob("*.done")]
    assert bool(in_cache) != is_clustered
    shard_count = len(done_shards(clustered) + in_cache)
    assert shard_count == 2  # One of each split.
    capfd.readouterr()
    uri = run(settings).outputs["uri"]
    assert f"{shard_count} of {shard_count} tasks were already done" in capfd.readouterr().err
    assert [entry.key.split("/")[0] for entry in clustered.list("")] == ["datasets"] * 7
    if is_clustered:  # A step that ends in the middle of the removal leaves some.
        clustered.put(f"shards/datasets/{uri.rpartition('/')[2]}/a.done", b"")
        run(settings)
        assert not done_shards(clustered)


def test_a_command_that_ends_before_its_last_record_keeps_its_shards(
    inputs: Path, tmp_path: Path, clustered: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"input": str(inputs / "a.jsonl"), "output_prefix": f"{clustered.uri}/out/result"}
    settings = config(tmp_path, inputs, **files, tasks=3)
    write = destination._Objects.write

    def interrupt_write(self: destination._Objects, name: str, data: bytes) -> None:
        if b'"keys"' in data:
            raise KeyboardInterrupt
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(destination._Objects, "write", interrupt_write)
        with pytest.raises(KeyboardInterrupt):
            run(settings)
    shards = done_shards(clustered)
    assert len(shards) == 3
    assert run(settings).facts["documents"] == len(TEXTS)
    assert not done_shards(clustered)
    clustered.put(shards[0], b"")
    run(settings)
    assert not done_shards(clustered)


def test_shards_that_another_run_of_the_same_work_removes_cost_a_try(
    inputs: Path, corpus: str, tmp_path: Path, clustered: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path, inputs, input=corpus, store=clustered.uri)

    def removed_meanwhile(prefix: Path, dtype: np.dtype, place: str, *more: Any) -> np.ndarray:
        workspace.empty_shelf(place)
        return assemble(prefix, dtype, place, *more)

    with monkeypatch.context() as patch:
        patch.setattr(build, "assemble", removed_meanwhile)
        with pytest.raises(StepError, match=r"no such object \(another run of the same work") as raised:
            run(settings)
    assert raised.value.code == ExitCode.TRY_AGAIN
    facts = run(settings).facts
    assert facts["train"]["documents"] + facts["validation"]["documents"] == len(TEXTS)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_a_run_whose_shards_another_one_has_removed_at_its_end_takes_what_that_one_made(
    inputs: Path,
    corpus: str,
    tmp_path: Path,
    clustered: Store,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    has_prefix: bool,
) -> None:
    files = {"input": str(inputs / "a.jsonl"), "output_prefix": f"{clustered.uri}/out/result"}
    settings = config(tmp_path, inputs, **(files if has_prefix else {"input": corpus, "store": clustered.uri}))
    others_outputs: list[Mapping[str, str]] = []

    def assemble_after_another(*arguments: Any) -> np.ndarray:
        monkeypatch.setattr(build, "assemble", assemble)
        others_outputs.append(run(settings).outputs)
        return assemble(*arguments)

    monkeypatch.setattr(build, "assemble", assemble_after_another)
    assert run(settings).outputs == others_outputs[0]
    assert "another run of the same work was first" in capfd.readouterr().err
    assert not [entry.key for entry in clustered.list("") if "shards/" in entry.key]


def test_an_outage_while_shards_are_put_together_is_told_in_the_stores_words(
    inputs: Path, corpus: str, tmp_path: Path, clustered: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "assemble", no_answer)
    with pytest.raises(Unavailable) as raised:
        run(config(tmp_path, inputs, input=corpus, store=clustered.uri))
    assert disk_error_line(raised.value, "") == "no answer"
    assert done_shards(clustered)
