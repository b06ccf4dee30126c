"""--train-tokenizer: a vocabulary of its own, without Spark."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from everstep.steps.corpus import Config as CorpusConfig
from everstep.steps.corpus.run import run as make_corpus
from everstep.steps.entry import StepError
from everstep.steps.model.tokenizer import find_tokenizer
from everstep.steps.preprocess import Config
from everstep.steps.preprocess.run import run

TEXTS = [f"value_{number} = compute({number}, na\u00efve)\n" * 5 for number in range(60)]


@pytest.fixture
def given(tmp_path: Path) -> Config:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return Config(
        input=str(tmp_path / "a.jsonl"),
        output_prefix=str(tmp_path / "out/words"),
        train_tokenizer=300,
        store=str(tmp_path / "store"),
        outputs=str(tmp_path / "outputs"),
    )


def changed(config: Config, **values: object) -> Config:
    made = Config(**{**vars(config), **values})  # type: ignore[arg-type]
    made.check()
    return made


def test_it_is_written_beside_the_prefix_and_not_over_another(given: Config) -> None:
    told = run(changed(given))
    file = Path(told.outputs["uri"])
    assert file.name == "words_tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.decode(tokenizer.encode(TEXTS[0]).ids) == TEXTS[0]
    before = file.read_bytes()
    assert run(changed(given)).outputs == told.outputs
    with pytest.raises(StepError, match="give --force to overwrite"):
        run(changed(given, train_tokenizer=310))
    assert file.read_bytes() == before
    run(changed(given, train_tokenizer=310, force=True))
    assert Tokenizer.from_file(str(file)).get_vocab_size() == 310


def test_of_a_corpus_it_is_in_the_store_and_found_again(given: Config, tmp_path: Path) -> None:
    corpus = make_corpus(CorpusConfig(source=given.input, store=given.store)).outputs["uri"]
    config = changed(given, input=corpus, output_prefix="")
    uri = run(config).outputs["uri"]
    assert Path(uri).parent == tmp_path / "store/tokenizers"
    written = find_tokenizer(uri, "--tokenizer").stat().st_mtime_ns
    assert run(config).outputs["uri"] == uri
    assert find_tokenizer(uri, "--tokenizer").stat().st_mtime_ns == written


def test_what_cannot_be_trained_is_refused(given: Config) -> None:
    with pytest.raises(StepError, match="--train-tokenizer 100: at least 257"):
        changed(given, train_tokenizer=100)
    with pytest.raises(StepError, match="trains its own"):
        changed(given, tokenizer="x")
