"""Measure the trained and the untrained model, export the trained one; once per checkpoint and settings."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.runtime.data.errors import DatasetError
from everstep.runtime.data.results import in_words
from everstep.runtime.store import StoreError
from everstep.runtime.store.code import script_name
from everstep.steps.entry import Result, StepError, artifact, disk_error_code
from everstep.steps.evaluate.checkpoint import CannotMeasureError, NotALlamaError, read, read_manifest
from everstep.steps.evaluate.config import Config
from everstep.steps.evaluate.script import run_script
from everstep.steps.model.directory import MANIFEST, TINY

if TYPE_CHECKING:
    from everstep.runtime.data import TokenDataset
    from everstep.steps.evaluate.checkpoint import TrainedModel

VERSION = 1
PROMPT_TOKENS = 12


def run(config: Config) -> Result:
    """Raises StepError for a checkpoint or a dataset that is missing or does not fit, or a failed script."""
    if config.script:
        results = {**config.training_results(), **run_script(config)}
        return _result(config, f"{script_name(config.script)}: {in_words(results) or 'named no results'}", results)
    if config.trained_by:
        try:
            return _measure(config) if config.checkpoint else _nothing_measured(config, "no checkpoint")
        except NotALlamaError:
            return _nothing_measured(config, "a checkpoint of another model than a Llama")
        except CannotMeasureError as error:
            return _nothing_measured(config, f"a checkpoint that this text cannot measure ({error})")
    return _measure(config)


def _nothing_measured(config: Config, why: str) -> Result:
    """For a script of the user's own that has left what this step cannot measure."""
    results, script = config.training_results(), script_name(config.trained_by)
    print(f"{script} left {why}, so nothing was measured; an evaluation script of your own can", file=sys.stderr)
    return _result(config, in_words(results) or f"nothing to measure: {script} left {why}", results)


def _result(config: Config, summary: str, results: dict[str, Any], measurements: Mapping[str, Any] = {}) -> Result:
    """`results`: by scripts; `perplexity` and `model` among all are this step's outputs of these names."""
    facts = {**results, **measurements}
    outputs = {name: str(facts.get(name, "")) for name in ("perplexity", "model")}
    path = artifact(config, "metrics.json", json.dumps(facts, indent=1).encode() + b"\n")
    return Result(summary, {**outputs, "results": json.dumps(results, sort_keys=True)}, facts, {path.name: path})


def _measure(config: Config) -> Result:
    from everstep.runtime.data import data_folder, open_dataset

    for name in ("checkpoint", "validation"):
        if not getattr(config, name):
            raise StepError(f"--{name} is empty: give the URI that the step before printed")
    try:
        data = open_dataset(config.validation)
    except DatasetError as error:
        raise StepError(f"--validation {error}") from None
    except StoreError as error:
        raise StepError(f"--validation {error}", disk_error_code(error)) from None
    key = f"models/{_digest(config, data)}"
    metrics = data_folder.find_manifest(config.store, key, MANIFEST)
    if metrics is None:
        metrics = _evaluate(config, data, key)
    else:
        print("this checkpoint was evaluated before", file=sys.stderr)
    metrics = {**metrics, "model": data_folder.data_uri(config.store, key)}
    summary = f"perplexity {_short(metrics['perplexity'])} (untrained: {_short(metrics['untrained_perplexity'])})"
    result = _result(config, summary, config.training_results(), metrics)
    return replace(result, outputs={**result.outputs, "perplexity": f"{metrics['perplexity']:.4f}"})


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _digest(config: Config, data: "TokenDataset") -> str:
    """The digest that names the result: of the checkpoint's manifest, the dataset's, and the settings."""
    from everstep.runtime.checkpoint.stored.manifest import encode_manifest

    manifest = encode_manifest(read_manifest(config.checkpoint))
    parts = [VERSION, config.model, config.windows, config.sample_tokens, data.split, dict(data.meta)]
    return hashlib.sha256(manifest + json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _evaluate(config: Config, data: "TokenDataset", key: str) -> dict[str, Any]:
    threads = str(min(4, len(os.sched_getaffinity(0))))
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    trained_model = read(config.checkpoint)
    if int(trained_model.config["vocab_size"]) < data.vocab_size:
        vocabulary = trained_model.config["vocab_size"]
        what = f"--validation {config.validation}: tokens up to {data.vocab_size}, the model knows {vocabulary}"
        raise CannotMeasureError(f"{what}; give a dataset that its own tokenizer made")
    length, seed = int(trained_model.settings["sequence_length"]), int(trained_model.settings["seed"])
    if len(data.tokens) <= length:
        short = f"{len(data.tokens)} tokens are fewer than one sample of {length} needs"
        raise CannotMeasureError(f"--validation {config.validation}: {short}; hold out more text")
    samples = (len(data.tokens) - 1) // length
    windows = min(config.windows, samples)
    print(f"perplexity over {windows} of {samples} stretches of {length} tokens, evenly spaced", file=sys.stderr)

    import torch

    from everstep.runtime.data import data_folder
    from everstep.steps.evaluate import measure
    from everstep.steps.train.llama import build_model  # It takes seconds, which another model's checkpoint is spared.

    torch.set_num_threads(int(threads))
    base = build_model(config.model, data.vocab_size, seed, data.eod).eval()
    untrained = measure.perplexity(base, data.tokens, length, windows)
    print(f"untrained model: perplexity {_short(untrained)}", file=sys.stderr)
    model = trained_model.build().eval()
    perplexity = measure.perplexity(model, data.tokens, length, windows)
    print(f"trained model: perplexity {_short(perplexity)}", file=sys.stderr)
    metrics = {
        "version": VERSION,
        "perplexity": perplexity,
        "untrained_perplexity": untrained,
        "began_as": "random weights" if config.model == TINY else config.model,
        "iteration": trained_model.iteration,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "windows": windows,
        "of_windows": samples,
        "window_tokens": length,
        **_sample(config, data, model),
    }
    with data_folder.draft(config.store, key, MANIFEST) as draft:
        _export(trained_model, model, data, draft.folder)
        draft.commit(metrics)
    return metrics


def _sample(config: Config, data: "TokenDataset", model: Any) -> dict[str, str]:
    if not config.sample_tokens:
        return {}
    from tokenizers import Tokenizer

    from everstep.steps.evaluate import measure

    tokenizer = Tokenizer.from_file(str(data.tokenizer))
    prompt = data.tokens[:PROMPT_TOKENS]
    tokens_generated = measure.generate(model, prompt, config.sample_tokens)
    return {"prompt": tokenizer.decode(prompt.tolist()), "sample": tokenizer.decode(tokens_generated)}


def _export(trained_model: "TrainedModel", model: Any, data: "TokenDataset", folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and its config, as transformers reads them."""
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(data.tokenizer), clean_up_tokenization_spaces=False)
    if data.eod is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(data.eod)
    tokenizer.model_max_length = int(trained_model.config.get("max_position_embeddings", 2048))
    tokenizer.save_pretrained(folder)
