"""Encoding is what the tokenizer.json says, by whichever library."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from everstep.steps.preprocess import encoding
from everstep.steps.preprocess.byte_level import HARD_CASES
from everstep.steps.preprocess.encoding import (
    BLOCK,
    EncodingMethod,
    fast_encoder,
    make_encoder,
    needs_tokenizers,
    proven_encoder,
)
from everstep.steps.preprocess.vocabulary import train
from tests.examples import examples

TEXTS = ["def walk(self):\n        return self.next()  # don't\n", "The naïve café's 東京 1234 times.\n\n"] * 20


def train_small(vocab_size: int = 600) -> str:
    return train(iter(TEXTS), vocab_size, "", True).json.decode()


PLAIN = train_small()
KEPT = proven_encoder(PLAIN)
DIRECT = Tokenizer.from_str(PLAIN)


def direct(tokenizer_json: str, text: str) -> list[int]:
    return Tokenizer.from_str(tokenizer_json).encode(text, add_special_tokens=False).ids


@settings(max_examples=examples(300))
@given(st.text() | st.text("aeddefself .\n\t'srt1", max_size=200))
def test_tiktoken_gives_what_tokenizers_gives(text: str) -> None:
    assert KEPT.encode(text).tolist() == DIRECT.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("run", ["a", " ", "\n", "é", "1", " \t", "-"])
def test_long_runs_without_a_split_point_are_encoded_right(run: str) -> None:
    text = "x " + run * (200_000 // len(run)) + " y"
    assert KEPT.encode(text).tolist() == DIRECT.encode(text, add_special_tokens=False).ids
    short = run * (BLOCK // len(run))
    assert KEPT.encode(short).tolist() == DIRECT.encode(short, add_special_tokens=False).ids


def test_text_without_spaces_is_not_a_long_run() -> None:
    """Chinese and Japanese have none: their text shall not be encoded slowly."""
    fast = fast_encoder(PLAIN)
    assert fast is not None
    assert not needs_tokenizers("\u6771\u4eac\u3002" * 10_000, fast.added)
    assert needs_tokenizers("\u6771" * 10_000, fast.added)


def test_an_added_token_in_a_text_is_that_token() -> None:
    text = "before <|endoftext|> after"
    assert KEPT.encode(text).tolist() == DIRECT.encode(text, add_special_tokens=False).ids
    assert 0 in KEPT.encode(text)


def test_a_trained_vocabulary_is_proven_for_tiktoken() -> None:
    assert make_encoder(PLAIN, TEXTS).how is EncodingMethod.TIKTOKEN


def test_a_split_by_regular_expression_is_proven_too() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+(?!\S)|\s+"), behavior="isolated"),  # type: ignore[list-item]
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),  # type: ignore[list-item]
        ]
    )
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=500,  # type: ignore[call-arg]
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # type: ignore[call-arg]
            show_progress=False,  # type: ignore[call-arg]
        ),
    )
    encoder = make_encoder(tokenizer.to_str(), TEXTS)
    assert encoder.how is EncodingMethod.TIKTOKEN
    assert encoder.encode("walk 123456 times").tolist() == direct(tokenizer.to_str(), "walk 123456 times")


def test_another_kind_of_tokenizer_is_encoded_by_its_own_library() -> None:
    value = json.loads(PLAIN)
    value["normalizer"] = json.loads(normalizers.Lowercase().__getstate__())
    lower = json.dumps(value)
    encoder = make_encoder(lower, TEXTS)
    assert encoder.how is EncodingMethod.TOKENIZERS
    assert encoder.encode("SELF").tolist() == direct(lower, "self")


def test_merges_that_give_another_result_are_not_proven() -> None:
    value = json.loads(PLAIN)
    whole = Tokenizer.from_str(PLAIN).get_vocab_size()
    # A token made by a merge whose parts are never made: only tiktoken, which tries whole words first, would use it.
    value["model"]["merges"].append(["xq", "zw"])
    value["model"]["vocab"] |= {"xqzw": whole, "xq": whole + 1, "zw": whole + 2}
    encoder = make_encoder(json.dumps(value), [])
    assert encoder.how is EncodingMethod.TOKENIZERS
    assert encoder.encode("xqzw").tolist() == direct(json.dumps(value), "xqzw")


@pytest.mark.parametrize(
    ("pattern", "case"),
    [
        (r"\p{N}+|[a-z]+|[^\p{N}a-z]+", ""),
        (r"(?i:'s)|[^']+|'", "it'\u017f"),
        (r"[\x0b\x0c]|[^\x0b\x0c]+", "a\x0bb"),
    ],
)
def test_whatever_the_pattern_the_result_is_that_of_the_tokenizer(pattern: str, case: str) -> None:
    """Both libraries have regular expressions of their own: where they disagree on a hard case, ours is not used."""
    value = json.loads(PLAIN)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    tokenizer_json = json.dumps(value)
    encoder = make_encoder(tokenizer_json, [])
    for text in (*HARD_CASES, *TEXTS, case):
        assert encoder.encode(text).tolist() == direct(tokenizer_json, text)


def test_a_difference_on_a_hard_case_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = fast_encoder(PLAIN)
    assert fast is not None
    for case in filter(None, HARD_CASES):
        wrong = replace(fast, encode=lambda text, case=case: fast.encode(text)[: -1 if text == case else None])
        monkeypatch.setattr(encoding, "fast_encoder", lambda _, wrong=wrong: wrong)
        assert make_encoder(PLAIN, TEXTS).how is EncodingMethod.TOKENIZERS


def test_training_twice_gives_the_same_file() -> None:
    assert train_small() == train_small()
    assert isinstance(Tokenizer.from_str(PLAIN).decoder, decoders.ByteLevel)


@pytest.mark.parametrize("fast", [True, False])
def test_what_a_file_keeps_of_its_last_use_cuts_off_no_document_and_fills_up_none(fast: bool) -> None:
    tokenizer = Tokenizer.from_str(PLAIN)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=8)
    tokenizer_json = tokenizer.to_str() if fast else tokenizer.to_str().replace('"dropout":null', '"dropout":0.0000001')
    encoder = make_encoder(tokenizer_json, TEXTS)
    assert encoder.how is (EncodingMethod.TIKTOKEN if fast else EncodingMethod.TOKENIZERS)
    for text in ("a", TEXTS[0] * 3):
        assert encoder.encode(text).tolist() == DIRECT.encode(text, add_special_tokens=False).ids
