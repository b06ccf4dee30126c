"""Files beside each other under --output-prefix, by a real Spark: Megatron's own command line and what it leaves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer

from everstep.runtime import faults
from everstep.runtime.data import IndexedDataset
from everstep.runtime.store import open_store
from everstep.steps.preprocess.vocabulary import train
from tests.harness import wait_until
from tests.minio import MinIO
from tests.namespaces import unshare
from tests.preprocess.standalone import SPARK, Cluster, secret, spark_environment, standalone

DEADLINE_S = 600.0
DOCUMENTS = [
    {"text": f"def function_{number}(a):\n    return a + {number * 7919}\n" * 20, "title": f"caf\u00e9 {number}"}
    for number in range(400)
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `a.jsonl` and `tokenizer.json`."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "a.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    texts = (document["text"] for document in DOCUMENTS)
    (folder / "tokenizer.json").write_bytes(train(texts, 500, "", True).json)
    return folder


def command(input_folder: Path, out: Path, *more: str) -> list[str]:
    return [
        *("--input", str(input_folder / "a.jsonl"), "--output-prefix", str(out / "result")),
        *("--vocab", str(input_folder / "tokenizer.json"), "--tokenizer-type", "HFTokenizer", "--append-eod"),
        *("--jsonl-keys", "text", "title", "--workers", "2", "--append-eod", "--store", str(out / "store")),
        *("--outputs", str(out / "outputs"), *more),
    ]


def run_command(
    *arguments: str,
    program: tuple[str, ...] = (sys.executable, "-m", "everstep.steps.preprocess"),
    environment: Mapping[str, str] = os.environ,
) -> tuple[int, str]:
    """Exit code and what was told."""
    completed = subprocess.run(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        env=environment,
    )
    return completed.returncode, completed.stdout


def tokens_of(input_folder: Path, key: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(input_folder / "tokenizer.json"))
    return [[*tokenizer.encode(document[key]).ids, 0] for document in DOCUMENTS]


def assert_right(input_folder: Path, out: Path) -> None:
    for key in ("text", "title"):
        read = IndexedDataset(out / f"result_{key}_document")
        assert [document.tolist() for document in read] == tokens_of(input_folder, key)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


FILES = [
    "result_preprocess.html",
    "result_preprocess.json",
    "result_text_document.bin",
    "result_text_document.idx",
    "result_title_document.bin",
    "result_title_document.idx",
]


def test_megatrons_command_makes_a_dataset_of_each_key_and_is_not_repeated_or_mixed(
    inputs: Path, tmp_path: Path
) -> None:
    code, output = run_command(*command(inputs, tmp_path))
    assert code == 0, output
    assert_right(inputs, tmp_path)
    assert names(tmp_path) == FILES
    assert not list(tmp_path.glob(".result*"))
    record = json.loads((tmp_path / "result_preprocess.json").read_text())
    assert (record["documents"], record["dropped"]) == (400, {"unreadable": 0, "too short": 0, "too long": 0})
    assert "caf\u00e9" in (tmp_path / "outputs/dataset.html").read_text()
    assert record["keys"]["text"]["tokens"] == sum(map(len, tokens_of(inputs, "text")))
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in FILES}
    code, output = run_command(*command(inputs, tmp_path, "--tasks", "3"))
    assert (code, "is already done" in output) == (0, True)
    code, output = run_command(*command(inputs, tmp_path, "--ftfy"))
    assert code == 2
    assert output.count("\n") == 1
    assert "give --force to overwrite" in output
    assert before == {name: (tmp_path / name).stat().st_mtime_ns for name in FILES}


SUBMIT = str(SPARK / "bin/spark-submit")
SCRIPT = str(Path(__file__).parents[2] / "steps/preprocess/__main__.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, minio: MinIO) -> Iterator[Cluster]:
    """Its executors know the store."""
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, spark_environment(folder) | minio.environment) as started:
        yield started


def holding(cluster: Cluster) -> psutil.Process | None:
    """The executor of which a Python worker has stopped."""
    for executor in cluster.executors():
        with suppress(psutil.Error):
            if any(child.status() == psutil.STATUS_STOPPED for child in executor.children(recursive=True)):
                return executor
    return None


@pytest.mark.long
def test_an_executor_of_a_cluster_that_is_killed_in_the_middle_changes_no_byte(
    inputs: Path, tmp_path: Path, cluster: Cluster
) -> None:
    """A Python worker stops in the middle of a shard; then its executor is killed."""
    (tmp_path / "faults").mkdir()
    environment = spark_environment(tmp_path / "spark")
    rule = "preprocess.before_commit,shard=document-00004=stop"
    fault_variables = {faults.FAULT_VARIABLE: rule, faults.FAULT_DIR_VARIABLE: str(tmp_path / "faults")}
    settings = [
        word for name, value in fault_variables.items() for word in ("--conf", f"spark.executorEnv.{name}={value}")
    ]
    with ThreadPoolExecutor(1) as pool:
        program = (SUBMIT, "--master", cluster.master, "--executor-memory", "512m", *settings, SCRIPT)
        arguments = command(inputs, tmp_path, "--tasks", "8")
        running = pool.submit(lambda: run_command(*arguments, program=program, environment=environment))
        worker_process = wait_until(lambda: running.done() or holding(cluster), "the stop of a worker", DEADLINE_S)
        assert not running.done(), running.result()
        worker_process.kill()
        code, fault_variables = running.result()
    assert code == 0, fault_variables
    assert_right(inputs, tmp_path)
    assert names(tmp_path) == FILES


@pytest.mark.long
def test_on_a_cluster_nothing_is_shared_but_the_store(
    inputs: Path, tmp_path: Path, s3: MinIO, cluster: Cluster
) -> None:
    """Input, shards and output are there: also what is left out, by a shuffle of the executors."""
    store = open_store(s3.new_prefix())
    store.put("in/a.jsonl", inputs / "a.jsonl")
    there = ["--input", f"{store.uri}/in/*.jsonl", "--output-prefix", f"{store.uri}/out/result", "--tasks", "3"]
    there += ["--spark-master", cluster.master, "--executors", "2", "--executor-cores", "1", "--deduplicate"]
    environment = {**os.environ, **secret(tmp_path / "spark")}
    code, output = run_command(*command(inputs, tmp_path, *there), environment=environment)
    assert code == 0, output
    assert f"starting Spark on {cluster.master}" in output
    assert "asks for no secret" not in output
    assert [entry.key for entry in store.list("out/")] == [f"out/{name}" for name in FILES]
    for name in FILES:
        (tmp_path / name).write_bytes(store.get(f"out/{name}"))
    assert_right(inputs, tmp_path)
    code, output = run_command(*command(inputs, tmp_path, *there))
    assert (code, "is already done" in output) == (0, True)


def test_a_full_disk_is_told_in_one_line_and_nothing_has_a_final_name(inputs: Path, tmp_path: Path) -> None:
    """On a file system of 128 KiB, which a mount namespace of the test's own has."""
    disk = tmp_path / "disk"
    disk.mkdir()
    enter = unshare("-m")
    if enter is None:
        pytest.skip("no mount namespaces here: no small disk can be made")
    arguments = command(inputs, tmp_path, "--output-prefix", str(disk / "result"), "--tasks", "4")
    script = 'mount -t tmpfs -o size=128k none "$0" && { "$@"; code=$?; ls -A "$0"; exit $code; }'
    code, output = run_command(
        *arguments, program=(*enter, "sh", "-c", script, str(disk), sys.executable, "-m", "everstep.steps.preprocess")
    )
    assert code == 2, output
    assert f"preprocess: no space left on the disk of {disk}" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_workers_that_are_killed_in_the_middle_change_no_byte(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an executor that is lost: Spark gives the shard to another worker, under another attempt's name."""
    points = {"preprocess.begun": 1, "preprocess.before_commit": 3, "preprocess.after_commit": 5}
    rules = [f"{point},shard=document-{number:05d}=kill" for point, number in points.items()]
    (tmp_path / "faults").mkdir()
    monkeypatch.setenv(faults.FAULT_VARIABLE, ";".join(rules))
    monkeypatch.setenv(faults.FAULT_DIR_VARIABLE, str(tmp_path / "faults"))
    code, output = run_command(*command(inputs, tmp_path, "--tasks", "8"))
    assert sorted(path.name for path in (tmp_path / "faults").iterdir()) == sorted(points)
    assert code == 0, output
    assert_right(inputs, tmp_path)
    assert names(tmp_path) == FILES


@pytest.mark.long
def test_a_killed_command_is_taken_up_where_its_tasks_were(inputs: Path, tmp_path: Path) -> None:
    arguments = command(inputs, tmp_path, "--tasks", "40")
    process = subprocess.Popen([sys.executable, "-m", "everstep.steps.preprocess", *arguments], stderr=subprocess.PIPE)
    wait_until(
        lambda: list(tmp_path.glob(".result*/*.done")) or process.poll() is not None, "a task that is done", DEADLINE_S
    )
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    assert names(tmp_path) == []
    code, output = run_command(*arguments)
    assert code == 0, output
    assert "of 40 tasks were already done by an earlier command" in output
    assert_right(inputs, tmp_path)
    assert names(tmp_path) == FILES
