"""What of this machine comes along to a cluster: put into the store once, named by address, and found there."""

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from everstep.errors import BadInput
from everstep.local_files import LocalFile, project_files, with_addresses
from everstep.runtime.store import Store, Unavailable, fetch_folder, open_store
from everstep.runtime.store.code import ARCHIVE, fetch_code, is_code_address, script_name
from everstep.runtime.text import find_files
from everstep.steps.model.tokenizer import find_tokenizer
from everstep.steps.train import Config as Train
from everstep.steps.train.job import job_of
from tests.minio import MinIO


@dataclass(frozen=True)
class Config:
    """A pipeline's."""

    corpus: Annotated[str, LocalFile.TEXT] = ""
    tokenizer: Annotated[str, LocalFile.TOKENIZER] = ""
    model: Annotated[str, LocalFile.MODEL] = "tiny"
    script: Annotated[str, LocalFile.SCRIPT] = ""
    job_spec: Annotated[str, LocalFile.JOB_SPEC] = ""
    nodes: int = 2


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store; what is put into one is the same for each kind."""
    return str(tmp_path / "store")


def texts(folder: Path) -> Path:
    """Two files of text."""
    folder.mkdir()
    for name in ("b 2.txt", "a.jsonl"):
        (folder / name).write_text('{"text": "x"}\n')
    return folder


def test_text_is_put_into_the_store_once(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_before = Config(corpus=str(texts(tmp_path / "texts")))
    first = with_addresses(config_before, store, "")
    second = with_addresses(config_before, store, "")
    assert first.corpus == second.corpus
    assert first.corpus.startswith(f"{store}/uploads/")
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "put into the store", "in the store already",
    ]  # fmt: skip
    names = [Path(name).name for name in find_files(first.corpus, "--corpus")]
    assert names == ["a.jsonl", "b_2.txt"]


def test_text_in_another_order_keeps_its_order(store: str, tmp_path: Path) -> None:
    folder = texts(tmp_path / "texts")
    config_before = Config(corpus=f"{folder}/b 2.txt,{folder}/a.jsonl")
    names = [Path(name).name for name in find_files(with_addresses(config_before, store, "").corpus, "--corpus")]
    assert names == ["00000-b_2.txt", "00001-a.jsonl"]


def test_changed_text_has_another_address(store: str, tmp_path: Path) -> None:
    config_before = Config(corpus=str(texts(tmp_path / "texts")))
    before = with_addresses(config_before, store, "").corpus
    (tmp_path / "texts" / "a.jsonl").write_text('{"text": "y"}\n')
    assert with_addresses(config_before, store, "").corpus != before


def test_what_names_no_file_of_this_machine_stays_and_needs_no_store(tmp_path: Path) -> None:
    config_before = Config(
        tokenizer="s3://b/tokenizers/x", model="smollm2", script="s3://b/code/0123456789abcdef#train.py"
    )
    assert with_addresses(config_before, "s3://nowhere/at-all", "") is config_before


def test_a_tokenizer_is_found_by_its_address(s3: MinIO, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"model": {"vocab": {"a": 0}}}')
    uri = "s3://everstep-tests/here"
    address = with_addresses(Config(tokenizer=str(file)), uri, "").tokenizer
    assert address.startswith(f"{uri}/tokenizers/")
    assert find_tokenizer(address, "--tokenizer").read_text() == file.read_text()


def test_a_tokenizer_comes_with_the_configuration_beside_it(store: str, tmp_path: Path) -> None:
    """It names the token that ends documents."""
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    address = with_addresses(Config(tokenizer=str(tmp_path / "tokenizer.json")), store, "").tokenizer
    found = find_tokenizer(address, "--tokenizer")
    assert found.with_name("tokenizer_config.json").read_text() == '{"eos_token": "a"}'


def test_a_model_is_finished_where_its_address_leads(s3: MinIO, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_text("{}")
    address = with_addresses(Config(model=str(tmp_path)), "s3://everstep-tests/here", "").model
    there = fetch_folder(address, "everstep-model.json")
    assert sorted(path.name for path in there.iterdir()) == ["config.json", "everstep-model.json", "model.safetensors"]


def test_a_job_spec_is_its_text(store: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("replicaSpecs: {worker: {replicas: 3}}")
    text = with_addresses(Config(job_spec=str(file)), store, "").job_spec
    assert job_of(Train(job_spec=text)).roles["worker"].nodes == 3


def test_a_text_that_is_too_long_for_a_file_name_stays(store: str) -> None:
    long = "{" + "x" * 300
    config_before = Config(tokenizer=long, model=long, script=long, job_spec=long)
    assert with_addresses(config_before, store, "") is config_before


def project(folder: Path) -> Path:
    """A script, a module beside it, and what is not code."""
    (folder / "package").mkdir(parents=True)
    files = {
        "train.py": "import package.parts\n", "package/parts.py": "", "data.bin": "big", ".gitignore": "*.bin\nout/\n",
        "package/.gitignore": "cache", "package/cache": "x",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "out").mkdir()
    (folder / "out" / "log").write_text("x")
    return folder


WANTED = [".gitignore", "package/.gitignore", "package/parts.py", "train.py"]


def test_a_project_comes_without_what_its_gitignores_name(tmp_path: Path) -> None:
    root = project(tmp_path / "project")
    assert [path.relative_to(root).as_posix() for path in project_files(root)] == WANTED


def test_a_repository_comes_with_what_is_committed_and_what_is_new(tmp_path: Path) -> None:
    root = project(tmp_path / "project")
    subprocess.run(["git", "init", "-q", root], check=True)
    subprocess.run(["git", "-C", root, "add", "-f", "data.bin"], check=True)
    assert [path.relative_to(root).as_posix() for path in project_files(root)] == sorted([*WANTED, "data.bin"])


def test_a_link_out_of_the_project_stays_here(tmp_path: Path) -> None:
    root = project(tmp_path / "project")
    (tmp_path / "secret").write_text("x")
    (root / "link.py").symlink_to(tmp_path / "secret")
    assert root / "link.py" not in project_files(root)


def test_a_script_is_found_with_its_project(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = project(tmp_path / "project")
    address = with_addresses(Config(script=str(root / "train.py")), store, str(root)).script
    assert is_code_address(address)
    assert script_name(address) == "train.py"
    folder, script = fetch_code(address)
    assert script == folder / "train.py"
    assert (folder / "package" / "parts.py").exists()
    assert Train(script=address).script_path() == script
    assert "4 files, 0.0 kB" in capsys.readouterr().err


def test_a_script_alone_says_what_it_imports_from_beside_it(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path / "project")
    address = with_addresses(Config(script=str(root / "train.py")), store, "").script
    with tarfile.open(Path(address.partition("#")[0], ARCHIVE)) as tar:
        assert tar.getnames() == ["train.py"]
    assert f"imports package beside it, which stays here; --code {root}" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["train.py", "/s/code/0123456789abcdef#../../etc/passwd"])
def test_no_file_outside_of_the_code_is_a_script(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = open_store(str(tmp_path / "s"))
    store.put(f"code/0123456789abcdef/{ARCHIVE}", empty_archive(tmp_path))
    with pytest.raises(ValueError, match=r"no address of a script|no such script"):
        fetch_code(address.replace("/s/", f"{tmp_path}/s/"))


def empty_archive(folder: Path) -> bytes:
    """A tar.gz with nothing in it but a folder."""
    path = folder / "empty.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("package")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("config", "code", "part"),
    [
        (Config(script="other.py"), "gone", "--code gone: no such folder"),
        (Config(), "project", "it belongs to a --script"),
        (Config(script="outside.py"), "project", "not below --code"),
        (Config(corpus="no-such.txt"), "", "matches no file"),
        (Config(corpus="outside.py"), "", "outside.py"),
    ],
)
def test_what_cannot_come_along_is_one_line(
    config: Config, code: str, part: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project(tmp_path / "project")
    Path("outside.py").write_text("")
    with pytest.raises(BadInput, match=part) as refusal:
        with_addresses(config, store, code)
    assert "\n" not in str(refusal.value)


def test_a_store_that_this_machine_cannot_write_is_one_line(
    s3: MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(BadInput, match=r"cannot be put into the store.*or give s3://"):
        with_addresses(Config(corpus=str(tmp_path / "a.txt")), "s3://everstep-tests/here", "")


def test_a_store_that_does_not_answer_may_do_so_at_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(uri: str) -> Store:
        raise Unavailable(f"{uri}: no answer")

    monkeypatch.setattr("everstep.local_files.open_store", no_answer)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(Unavailable, match=r"^s3://b: no answer; this machine's files cannot be put into the store"):
        with_addresses(Config(corpus=str(tmp_path / "a.txt")), "s3://b", "")
