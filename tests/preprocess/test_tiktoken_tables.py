"""Tables of tiktoken's on disk, and the tokenizer.json of tokenizers that have none of their own."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.entry import StepError
from everstep.steps.preprocess import Config
from everstep.steps.preprocess.byte_level import HARD_CASES, bytes_of_characters
from everstep.steps.preprocess.inputs import Corpus
from everstep.steps.preprocess.run import _digest
from everstep.steps.preprocess.tiktoken_tables import encoding_of_table, json_of_bytes, json_of_encoding
from everstep.steps.preprocess.vocabulary import EOD, load, train

TEXTS = ["def f(a):\n    return 'caf\u00e9' + str(a) * 12345\n", "The end, they're there; 3.14 \u4e2d\u6587 \U0001f600"]


def table() -> bytes:
    """Bytes and merges, in the order of their ranks, as tiktoken writes them."""
    byte = bytes_of_characters()
    vocab = json.loads(train(iter(TEXTS * 20), 400, "", False).json)["model"]["vocab"]
    tokens = sorted((number, name) for name, number in vocab.items() if name != EOD)
    lines = (
        base64.b64encode(bytes(byte[character] for character in name)) + f" {rank}".encode()
        for rank, (_, name) in enumerate(tokens)
    )
    return b"\n".join(lines) + b"\n"


@pytest.fixture(scope="module", params=["r50k_base", "cl100k_base", "o200k_base"])
def both(request: pytest.FixtureRequest) -> tuple[object, Tokenizer]:
    """An encoding, and the tokenizer.json made of it."""
    encoding = encoding_of_table(f"/data/{request.param}.tiktoken", table())
    return encoding, Tokenizer.from_str(json_of_encoding(encoding).decode())


@pytest.mark.parametrize("text", [*TEXTS, *HARD_CASES, "a <|endoftext|> b"])
def test_the_tokenizer_json_of_a_table_encodes_as_tiktoken_does(both: tuple[object, Tokenizer], text: str) -> None:
    encoding, tokenizer = both
    expected_tokens = encoding.encode(text, allowed_special="all")  # type: ignore[attr-defined]
    assert tokenizer.encode(text).ids == expected_tokens
    assert tokenizer.decode(expected_tokens, skip_special_tokens=False) == text


BYTES = Tokenizer.from_str(json_of_bytes().decode())


@given(text=st.text())
def test_the_tokenizer_json_of_bytes_has_the_bytes_of_utf8_as_tokens(text: str) -> None:
    assert BYTES.encode(text).ids == list(text.encode())
    assert BYTES.decode(list(text.encode())) == text


def test_a_vocabulary_of_a_table_or_of_bytes_has_a_tokenizer_json(tmp_path: Path) -> None:
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(table())
    config = Config(tokenizer_type="TiktokenTokenizer", vocab_file=str(path), append_eod=True)
    config.check()
    words = load(config)
    assert (words.size, words.eod) == (100277, 100257)
    assert Tokenizer.from_str(words.json.decode()).token_to_id("<|endoftext|>") == 100257
    of_bytes = load(Config(tokenizer_type="CharLevelTokenizer", append_eod=True))
    assert (of_bytes.size, of_bytes.eod, of_bytes.is_bytes) == (512, 0, True)


@pytest.mark.parametrize(
    ("name", "content", "expected_text"),
    [
        ("own.tiktoken", None, r"own.tiktoken: a table is named after its encoding.*cl100k_base.tiktoken"),
        ("gpt2.tiktoken", None, r"gpt2.tiktoken: a table is named after its encoding"),
        ("cl100k_base.tiktoken", b"IQ== 0\nnot base64!\n", r"line 2: not a token in base64 and its rank"),
        ("cl100k_base.tiktoken", b"IQ== 0\n", r"255 of the 256 bytes have no rank"),
    ],
)
def test_a_table_that_is_none_is_refused(name: str, content: bytes | None, expected_text: str) -> None:
    with pytest.raises(StepError, match=expected_text):
        encoding_of_table(name, content or table())


@pytest.mark.parametrize("path", ["missing.tiktoken", "/data/cl100k.txt", "x" * 300 + ".tiktoken"])
def test_a_missing_table_is_refused_before_anything_starts(path: str) -> None:
    with pytest.raises(StepError, match=f"--vocab-file {path}: no such table"):
        Config(tokenizer_type="TiktokenTokenizer", vocab_file=path).check()


@pytest.mark.parametrize(
    ("name", "expected_code", "expected_text"),
    [
        ("cl100k_base", ExitCode.TRY_AGAIN, r"cannot be fetched \(failed\); give its table"),
        ("unknown", ExitCode.BAD_INPUT, "not one of tiktoken's encodings; it has .*cl100k_base"),
    ],
)
@pytest.mark.parametrize("error", [OSError("failed"), ValueError("failed")])  # No connection; a torn download.
def test_a_table_that_cannot_be_fetched_is_not_taken_for_an_unknown_one(
    error: Exception, name: str, expected_code: ExitCode, expected_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("tiktoken.get_encoding", fail)
    with pytest.raises(StepError, match=f"--vocab-file {name}: {expected_text}") as raised:
        load(Config(tokenizer_type="TiktokenTokenizer", vocab_file=name))
    assert raised.value.code == expected_code


def test_two_encodings_with_one_table_make_two_datasets(tmp_path: Path) -> None:
    def address_of(place: str) -> str:
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"IQ== 0\n")
        return _digest(Config(tokenizer_type="TiktokenTokenizer", vocab_file=str(path)), Corpus("", "", 1, {}))

    first = address_of("a/o200k_base.tiktoken")
    assert first == address_of("b/o200k_base.tiktoken")
    assert first != address_of("a/o200k_harmony.tiktoken")
