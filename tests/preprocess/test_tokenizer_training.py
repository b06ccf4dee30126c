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
def base_config(tmp_path: Path) -> Config:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return Config(
        input=str(tmp_path / "a.jsonl"),
        output_prefix=str(tmp_path / "out/words"),
        train_tokenizer=300,
        store=str(tmp_path / "store"),
        outputs=str(tmp_path / "outputs"),
    )


def change(config: Config, **values: object) -> Config:
    new_config = Config(**{**vars(config), **values})  # type: ignore[arg-type]
    new_config.check()
    return new_config


def test_it_is_written_beside_the_prefix_and_not_over_another(base_config: Config) -> None:
    result = run(change(base_config))
    file = Path(result.outputs["uri"])
    assert file.name == "words_tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.decode(tokenizer.encode(TEXTS[0]).ids) == TEXTS[0]
    before = file.read_bytes()
    assert run(change(base_config)).outputs == result.outputs
    with pytest.raises(StepError, match="give --force to overwrite"):
        run(change(base_config, train_tokenizer=310))
    assert file.read_bytes() == before
    run(change(base_config, train_tokenizer=310, force=True))
    assert Tokenizer.from_file(str(file)).get_vocab_size() == 310


def test_of_a_corpus_it_is_in_the_store_and_found_again(base_config: Config, tmp_path: Path) -> None:
    corpus = make_corpus(CorpusConfig(source=base_config.input, store=base_config.store)).outputs["uri"]
    config = change(base_config, input=corpus, output_prefix="")
    uri = run(config).outputs["uri"]
    assert Path(uri).parent == tmp_path / "store/tokenizers"
    written_ns = find_tokenizer(uri, "--tokenizer").stat().st_mtime_ns
    assert run(config).outputs["uri"] == uri
    assert find_tokenizer(uri, "--tokenizer").stat().st_mtime_ns == written_ns


def test_what_cannot_be_trained_is_refused(base_config: Config) -> None:
    with pytest.raises(StepError, match="--train-tokenizer 100: at least 257"):
        change(base_config, train_tokenizer=100)
    with pytest.raises(StepError, match="trains its own"):
        change(base_config, tokenizer="x")
