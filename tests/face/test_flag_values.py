"""Every flag of the default pipeline and of its steps with values that nobody means.

What passes the checks must not fail in a later step for the same value; what does not is one line that names the flag,
and leaves nothing behind.
"""

import dataclasses
import importlib
import json
import os
import runpy
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from everstep.errors import BadInput
from everstep.options import Submission
from everstep.steps import check, corpus, evaluate, model, preprocess, report, train
from everstep.steps.entry import require_names, require_writable

PIPELINE = Path(__file__).parents[2] / "pipelines" / "llama_finetune.py"
CONFIG = runpy.run_path(str(PIPELINE))["Config"]
STEPS = {module.__name__.rpartition(".")[2]: module.Config for module in (
    corpus, model, preprocess, check, train, evaluate, report
)}  # fmt: skip
TEXTS = ("", " ", "nope", "empty", "folder", "binary", "unreadable", "-1", "nan", "s3://x/y", "ftp://x", "[]", "null",
         "{x}", "../..", "x" * 5000, "é", "@")  # fmt: skip
NUMBERS: dict[type, tuple[Any, ...]] = {
    int: (-1, 0, 10**9, 10**20, -(10**20)),
    float: (-1.0, 0.0, 1e308, float("nan"), float("inf"), -float("inf")),
    bool: (True, False),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with things of the wrong kind; the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "unreadable").write_text("x")
    (tmp_path / "unreadable").chmod(0)
    return tmp_path


def refusal_of(config: Any) -> str:
    """What the config's own check says; empty if it passes. Anything but one line is an error here."""
    refusal: list[str] = []
    try:
        config.check()
    except BadInput as error:
        refusal = str(error).splitlines()
    assert len(refusal) <= 1, refusal
    return "".join(refusal)


def values_of(config: type[Any], field: str) -> tuple[Any, ...]:
    kind = get_type_hints(config)[field]
    return NUMBERS.get(kind, TEXTS)


def cases() -> list[Any]:
    every = {"pipeline": CONFIG, **STEPS}
    return [
        pytest.param(name, config, field.name, id=f"{name}-{field.name}")
        for name, config in every.items()
        for field in dataclasses.fields(config)
    ]


@pytest.mark.parametrize(("name", "config", "field"), cases())
def test_a_value_that_nobody_means_is_one_line_with_its_flag_or_passes(
    name: str, config: type[Any], field: str, folder: Path
) -> None:
    before = sorted(os.listdir(folder))
    for value in values_of(config, field):
        refusal = refusal_of(config(**{field: value}))
        assert sorted(os.listdir(folder)) == before, value
        if refusal:
            assert f"--{field.replace('_', '-')}" in refusal, (value, refusal)


COUNTS = [
    pytest.param(name, config, field.name, value, id=f"{name}-{field.name}-{value}")
    for name, config in {"pipeline": CONFIG, **STEPS}.items()
    for field in dataclasses.fields(config)
    for value in NUMBERS.get(get_type_hints(config)[field.name], ())
    if not isinstance(value, bool) and not -1 < value < 10**10
]


@pytest.mark.parametrize(("name", "config", "field", "value"), COUNTS)
def test_numbers_without_bounds_are_refused(name: str, config: type[Any], field: str, value: float) -> None:
    refusal = refusal_of(config(**{field: value}))
    assert refusal, f"{name} takes {field}={value}"
    assert f"--{field.replace('_', '-')}" in refusal


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("store", ""), ("store", "empty"), ("store", "ftp://x"), ("store", "/proc/1/x"), ("outputs", "empty/x")],
)
def test_places_that_cannot_be_written_are_refused_before_the_work(step: str, field: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"^--{field} "):
        require_writable(STEPS[step](**{field: value}))


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"store": ""}, "--store is empty"),
        ({"runs": ""}, "--runs ''"),
        ({"runs": "s3://bucket/runs"}, "--runs 's3://bucket/runs'"),
        ({"work_dir": "empty"}, "--work-dir empty: not a folder"),
        ({"no_network": True}, "--no-network: needs --sandbox"),
    ],
)
def test_flags_of_every_pipeline_are_checked_too(flags: dict[str, Any], part: str) -> None:
    with pytest.raises(BadInput, match=part.replace("(", r"\(")):
        Submission(**flags).check("local", "because")


def llama(folder: Path, vocabulary: int, tokens: int | None) -> str:
    """A model's folder with a tokenizer of so many tokens, if any."""
    folder.mkdir()
    config = {"model_type": "llama", "vocab_size": vocabulary, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    if tokens is not None:
        tokenizer(folder / "tokenizer.json", tokens)
    return str(folder)


def tokenizer(path: Path, tokens: int) -> str:
    path.write_text(json.dumps({"model": {"vocab": {f"t{token}": token for token in range(tokens)}}}))
    return str(path)


@pytest.mark.parametrize(
    ("model_vocabulary", "own", "tokenizer_vocabulary", "part"),
    [
        (100, 101, None, "its tokenizer.json has 101 tokens, the model knows 100"),
        (100, 100, 101, "--tokenizer given.json has 101 tokens, the model knows 100"),
        (100, None, None, "no tokenizer.json in it, and the one trained on your text has 8192 tokens"),
        (100, 100, None, ""),
        (100, 101, 100, ""),
        (8192, None, None, ""),
    ],
)
def test_a_tokenizer_that_does_not_fit_the_model_is_refused_before_anything_starts(
    model_vocabulary: int, own: int | None, tokenizer_vocabulary: int | None, part: str, folder: Path
) -> None:
    place = llama(folder / "llama", model_vocabulary, own)
    tokenizer_path = tokenizer(Path("given.json"), tokenizer_vocabulary) if tokenizer_vocabulary else ""
    refusal = refusal_of(CONFIG(model=place, tokenizer=tokenizer_path, sequence_length=64))
    assert part in refusal
    assert bool(refusal) == bool(part)


def test_samples_longer_than_the_model_reads_are_refused_before_anything_starts(folder: Path) -> None:
    refusal = refusal_of(CONFIG(model=llama(folder / "llama", 100, 100), sequence_length=65))
    assert refusal.startswith("--sequence-length 65: ")


@pytest.mark.parametrize("tokens", [0, 96])
def test_held_out_text_that_the_evaluation_cannot_measure_is_refused_before_training(tokens: int, folder: Path) -> None:
    facts = {"vocab_size": 100, "train": {"tokens": 5000}, "validation": {"tokens": tokens}}
    (folder / "dataset.json").write_text(json.dumps(facts))
    data: dict[str, Any] = {"dataset": str(folder), "validation": f"{folder}#validation"}
    assert refusal_of(train.Config(**data)).startswith(f"--sequence-length 96: the held-out text {folder}#validation")
    assert not refusal_of(train.Config(**data, script=str(PIPELINE))), "after a script of one's own nothing is needed"
    assert not refusal_of(train.Config(**data, sequence_length=95)) or not tokens


@pytest.mark.parametrize("text", ["def f(:", "x = 1\n  y = 2\n", "\0", "print 'hello'"])
def test_a_script_that_python_cannot_read_is_refused_by_its_line(text: str, folder: Path) -> None:
    (folder / "mine.py").write_text(text)
    assert refusal_of(CONFIG(script="mine.py")).startswith("--script mine.py")
    assert refusal_of(CONFIG(evaluate_script="mine.py")).startswith("--evaluate-script mine.py")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.txt", "", "--corpus "),
        ("a.txt", "a whole book", "--corpus a.txt: a single document"),
        ("a.jsonl", '{"content": "hello"}\n', "choose one with --text-key"),
        ("a.jsonl", '{"text": 1}\n', "choose one with --text-key"),
        ("a.jsonl", "hello\n", "a.jsonl:1"),
    ],
)
def test_text_that_the_corpus_step_could_not_read_is_refused(name: str, text: str, part: str, folder: Path) -> None:
    (folder / name).write_text(text)
    assert part in refusal_of(CONFIG(corpus=name))
    assert not refusal_of(CONFIG(corpus=name, text_key="content")) or "content" not in text


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["", "../..", "a/b", "-x", "x" * 300])
def test_names_that_cannot_be_parts_of_a_key_are_refused(step: str, name: str) -> None:
    for field in ("run", "task"):
        with pytest.raises(BadInput, match=f"^--{field} "):
            require_names(STEPS[step](**{field: name}))


def test_no_report_is_written_of_a_run_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERSTEP_RUN_DIR", raising=False)
    write = importlib.import_module("everstep.steps.report.__main__").run
    with pytest.raises(BadInput, match=r"^--run nope: no step of such a run"):
        write(report.Config(run="nope", store=str(folder / "store")))
    assert not (folder / "outputs").exists()
