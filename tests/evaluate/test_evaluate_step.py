"""A checkpoint as training leaves it -> figures, a sample, a directory that transformers loads."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from everstep.runtime.data import IndexedWriter
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import DirectoryStore, Unavailable, open_store
from everstep.steps.entry import StepError
from everstep.steps.evaluate import Config
from everstep.steps.evaluate.run import run

TEXT = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog sat"] * 12


@dataclass(frozen=True)
class Setting:
    config: Config
    folder: Path


def make_dataset(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=["<|endoftext|>"], initial_alphabet=letters)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    documents = [[*tokenizer.encode(text).ids, 0] for text in TEXT]
    meta = {"version": 1, "tokenizer": "tokenizer.json", "vocab_size": tokenizer.get_vocab_size(), "eod": 0}
    for split in ("train", "validation"):
        with IndexedWriter(folder / split, np.uint16) as writer:
            for document in documents:
                writer.add(document)
        meta[split] = {"prefix": split, "documents": len(documents), "tokens": sum(map(len, documents))}
    (folder / "dataset.json").write_text(json.dumps(meta))
    return tokenizer.get_vocab_size()


def make_checkpoint(store: Path, vocab_size: int) -> str:
    """A one-layer Llama, saved as a plain script saves."""
    import torch
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    from everstep.runtime.checkpoint.state.flatten import flatten
    from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper

    torch.manual_seed(1)
    sizes: dict = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=vocab_size, tie_word_embeddings=True))
    settings = {"sequence_length": 16, "seed": 0}
    config = {"settings": json.dumps(settings), "model": model.config.to_json_string(use_diff=False)}
    alone = StandaloneKeeper(open_store(str(store)), "j")
    alone.save(5, flatten({"model": model, "config": config}), persist=True)
    alone.flush(5)
    return f"{store}/jobs/j/checkpoints/000001-000000005"


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    vocab_size = make_dataset(tmp_path / "data")
    checkpoint = make_checkpoint(tmp_path / "store", vocab_size)
    config = Config(
        checkpoint=checkpoint,
        validation=f"{tmp_path}/data#validation",
        store=f"{tmp_path}/store",
        outputs=f"{tmp_path}/out",
        windows=4,
        sample_tokens=5,
    )
    return Setting(config, tmp_path)


def test_the_exported_directory_loads_in_transformers_with_the_same_weights(setting: Setting) -> None:
    import torch
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from everstep.steps.evaluate.checkpoint import read

    result = run(setting.config)
    model = AutoModelForCausalLM.from_pretrained(result.outputs["model"])
    weights = read(setting.config.checkpoint).weights
    assert {name: torch.equal(weight, weights[name]) for name, weight in model.state_dict().items()} == dict.fromkeys(
        weights, True
    )
    tokenizer = AutoTokenizer.from_pretrained(result.outputs["model"])
    assert tokenizer.decode(tokenizer("the cat sat")["input_ids"]) == "the cat sat"
    assert tokenizer.eos_token == "<|endoftext|>"


def test_the_result_names_both_perplexities_and_a_sample(setting: Setting) -> None:
    result = run(setting.config)
    metrics = json.loads((setting.folder / "out/metrics.json").read_text())
    assert float(result.outputs["perplexity"]) == pytest.approx(metrics["perplexity"], abs=1e-3)
    assert metrics["untrained_perplexity"] > 1
    assert metrics["windows"] == 4
    assert result.summary.startswith("perplexity ")
    assert metrics["sample"]


def test_a_second_run_finds_what_the_first_one_made(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(setting.config)
    monkeypatch.setattr("everstep.steps.evaluate.run._evaluate", None)
    assert run(setting.config) == first


def test_a_damaged_checkpoint_is_refused(setting: Setting) -> None:
    shard = Path(setting.config.checkpoint) / "rank-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(StepError, match="damaged"):
        run(setting.config)
    assert not list(setting.folder.glob("store/models/*"))


@pytest.mark.parametrize("call", ["get", "list", "read_into"])
def test_a_store_that_does_not_answer_for_a_while_may_do_so_at_the_next_try(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Of the dataset, of the checkpoint's folder, of a shard."""

    def no_answer(*_: object, **__: object) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(DirectoryStore, call, no_answer)
    with pytest.raises(StepError, match="no answer") as error:
        run(setting.config)
    assert error.value.code == ExitCode.TRY_AGAIN


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checkpoint": ""}, "--checkpoint is empty: give"),
        ({"validation": ""}, "--validation is empty: give"),
        ({"validation": "no/such#validation"}, "no finished dataset"),
        ({"checkpoint": "no/such"}, "no committed checkpoint"),
    ],
)
def test_what_is_not_there_is_named(setting: Setting, changes: dict, words: str) -> None:
    with pytest.raises(StepError, match=words):
        run(replace(setting.config, **changes))


@pytest.mark.parametrize("checkpoint", ["", "of another model"])
def test_what_is_not_a_llama_is_not_measured_and_no_error_where_another_script_trained(
    checkpoint: str, setting: Setting
) -> None:
    import torch

    from everstep.runtime.checkpoint.state.flatten import flatten
    from everstep.runtime.checkpoint.worker.standalone import StandaloneKeeper

    if checkpoint:
        alone = StandaloneKeeper(open_store(f"{setting.folder}/store"), "other")
        alone.save(5, flatten({"model": torch.nn.Linear(2, 2)}), persist=True)
        alone.flush(5)
        checkpoint = f"{setting.folder}/store/jobs/other/checkpoints/000001-000000005"
    config = replace(setting.config, checkpoint=checkpoint, trained_by="cnn.py")
    assert run(config).summary.startswith("nothing to measure: cnn.py left ")
    result = run(replace(config, results='{"accuracy": 0.93251, "model": "m"}'))
    assert result.summary == "accuracy 0.9325  model m"
    assert result.outputs == {"perplexity": "", "model": "m", "results": '{"accuracy": 0.93251, "model": "m"}'}
    with pytest.raises(StepError, match="--checkpoint"):
        run(replace(config, trained_by=""))


def test_a_script_of_the_users_own_evaluates(setting: Setting, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import json, os, everstep\n"
        "told = json.loads(os.environ['EVERSTEP_RESULTS'])\n"
        "assert os.environ['EVERSTEP_CHECKPOINT'] and os.environ['EVERSTEP_VALIDATION'].endswith('#validation')\n"
        "everstep.results(perplexity=12.5, right=told['loss'] * 2)\n"
    )
    config = replace(setting.config, script=str(script), results='{"loss": 2}')
    result = run(config)
    assert result.summary == "mine.py: loss 2  perplexity 12.5  right 4"
    assert result.outputs["perplexity"] == "12.5"
    script.write_text("raise SystemExit(7)")
    with pytest.raises(StepError, match="it ended with code 7") as failed:
        run(config)
    assert failed.value.code == 1
