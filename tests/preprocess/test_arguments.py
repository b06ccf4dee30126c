"""The command line: Megatron's flags as argparse takes them, and Everstep's own."""

from pathlib import Path

import pytest

from everstep.steps.entry import StepError
from everstep.steps.preprocess import Config
from everstep.steps.preprocess.arguments import parse


def parse_arguments(*arguments: str) -> Config:
    return parse(Config, "python -m everstep.steps.preprocess", "", arguments)


def test_megatrons_command_line_is_understood_with_abbreviations_and_repetition() -> None:
    line = (
        "--input stackexchange_aa.jsonl --output-prefix out/result --vocab 20B_tokenizer.json "
        "--tokenizer-type HFTokenizer --append-eod --jsonl-keys text --workers 64 --append-eod"
    )
    config = parse_arguments(*line.split())
    assert (config.input, config.output_prefix) == ("stackexchange_aa.jsonl", "out/result")
    assert (config.vocab_file, config.tokenizer_type) == ("20B_tokenizer.json", "HFTokenizer")
    assert (config.append_eod, config.keys, config.workers) == (True, ("text",), 64)


@pytest.mark.parametrize(
    ("flag_text", "field", "value"),
    [
        ("--vocab x", "vocab_file", "x"),
        ("--vocab=x", "vocab_file", "x"),
        ("--vocab-size 300", "vocab_size", 300),
        ("--out x", "output_prefix", "x"),
        ("--output x", "output_prefix", "x"),
        ("--outputs x", "outputs", "x"),
        ("--tokenizer HFTokenizer", "tokenizer_type", "HFTokenizer"),
        ("--tokenizer some/folder", "tokenizer", "some/folder"),
        ("--tok HFTokenizer", "tokenizer_type", "HFTokenizer"),
        ("--log 7 --log-interval 8", "log_interval", 8),
        ("--num 5", "num_docs", 5),
        ("--dataset lazy", "dataset_impl", "lazy"),
        ("--jsonl-keys a b", "jsonl_keys", "a,b"),
        ("--input a.jsonl b.jsonl --ftfy", "input", "a.jsonl,b.jsonl"),
        ("--ftfy", "ftfy", True),
        ("--ftfy=False", "ftfy", False),
        ("--append-eod=True", "append_eod", True),
        ("", "append_eod", False),
        ("--spark local[2]", "spark_master", "local[2]"),
    ],
)
def test_a_flag_means(flag_text: str, field: str, value: object) -> None:
    assert getattr(parse_arguments(*flag_text.split()), field) == value


@pytest.mark.parametrize("flag_text", ["--nonsense 1", "--tasks many", "--append-eod=perhaps", "--input"])
def test_a_wrong_flag_is_told_in_one_line(flag_text: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_arguments(*flag_text.split())
    assert raised.value.code == 2
    output = capsys.readouterr().err
    assert output.startswith("python -m everstep.steps.preprocess: ")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "expected_text"),
    [
        ("--tokenizer-type Nonsense", "choose one of HFTokenizer"),
        ("--tokenizer-type HFTokenizer", "--vocab-file is missing"),
        ("--vocab-file x", "give its kind with --tokenizer-type"),
        ("--tokenizer x --tokenizer-type HFTokenizer --vocab-file y", "give only one of them"),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file x", "--merge-file is missing"),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file x --merge-file y", "--vocab-file x: no such file"),
        ("--tokenizer-type HFTokenizer --vocab-file x", "--vocab-file x: no such file"),
        ("--dataset-impl flat", "--dataset-impl flat: choose one of mmap"),
        (
            f"--tokenizer-type GPT2BPETokenizer --vocab-file {'x' * 300} --merge-file m",
            "no such file; give the tokenizer's",
        ),
        ("--on-error cry", "--on-error cry: choose one of fail, skip"),
        ("--jsonl-keys ../a", "--jsonl-keys '../a'"),
        ("--workers -1", "--workers -1: must be at least 0"),
        ("--input gs://bucket/a.jsonl", "--input gs://bucket/a.jsonl: only local files and s3:// are read"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, flags: str, expected_text: str) -> None:
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(StepError) as error:
        parse_arguments(
            "--input", str(tmp_path / "a.jsonl"), "--output-prefix", str(tmp_path / "out"), *flags.split()
        ).check()
    assert expected_text in str(error.value)


def test_what_only_fits_files_is_refused_for_a_dataset_in_the_store() -> None:
    for flags in ("--jsonl-keys a b", "--dataset-impl lazy"):
        with pytest.raises(StepError, match="--output-prefix"):
            parse_arguments(*flags.split()).check()
