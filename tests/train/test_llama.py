"""The training script by itself: `python steps/train/llama.py`, one process, no agent."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.steps.train.config import LLAMA


def train(store: Path, dataset: Path, model: Path, iterations: int) -> dict:
    """The newest committed checkpoint's manifest."""
    flags = [f"--dataset={dataset}", f"--model={model}", f"--iterations={iterations}", "--sequence-length=16"]
    environment = {**os.environ, "EVERSTEP_STORE": str(store), "EVERSTEP_JOB": "alone", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(LLAMA), *flags, "--warmup=2"]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    newest = sorted(store.glob("jobs/alone/checkpoints/*/manifest.json"))[-1]
    return json.loads(newest.read_text())


@pytest.mark.long
def test_two_undisturbed_trainings_give_the_same_bytes(tmp_path: Path, dataset: Path, model: Path) -> None:
    first, second = (train(tmp_path / name, dataset, model, 6) for name in ("a", "b"))
    assert first["iteration"] == 6
    assert first["objects"][0]["digest"] == second["objects"][0]["digest"]


def test_algorithms_are_deterministic_before_the_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import everstep

    def look() -> None:
        found.append((torch.are_deterministic_algorithms_enabled(), os.environ["CUBLAS_WORKSPACE_CONFIG"]))

    found = list[tuple[bool, str]]()
    monkeypatch.setattr(everstep, "main", lambda function: look)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # The script's own does not stay after this test.
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    try:
        runpy.run_path(str(LLAMA), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == [(True, ":4096:8")]


def test_tiny_has_the_same_random_weights_for_a_seed() -> None:
    import torch

    from everstep.steps.train.llama import build_model

    one, two, other = (build_model("tiny", 32, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_tiny_has_about_five_million_parameters() -> None:
    from everstep.steps.train.llama import build_model

    count = sum(parameter.numel() for parameter in build_model("tiny", 8192, 0).parameters())
    assert 4_000_000 < count < 6_000_000


def test_a_model_that_lacks_tokens_of_the_dataset_is_refused(model: Path) -> None:
    from everstep.steps.train.llama import build_model

    with pytest.raises(SystemExit, match="64 tokens, the dataset's tokenizer has 65"):
        build_model(str(model), 65, 0)


def test_the_learning_rate_rises_to_its_peak_then_falls_to_a_tenth() -> None:
    from everstep.steps.train.llama import learning_rate

    rates = [learning_rate(iteration, 1.0, 10, 100) for iteration in range(1, 101)]
    assert rates[9] == max(rates) == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(1, 1.0, 0, 100) <= 1.0


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-5), ("bf16", 0.05)])
def test_gradients_of_micro_batches_add_up_to_those_of_the_whole_batch(
    precision: str, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import argparse

    import numpy as np
    import torch

    import everstep
    from everstep.steps.train.llama import add_gradients, build_model

    monkeypatch.setattr(everstep, "phase", lambda name: None)  # It needs a worker.
    tokens = torch.arange(40).view(5, 8) % 32
    batch = everstep.Batch(tokens[:, :-1], tokens[:, 1:], 0.5, 5, 1, np.arange(5))
    steps = []
    for micro_batch, kind in ((0, "fp32"), (2, precision)):
        model = build_model("tiny", 32, 0)
        options = argparse.Namespace(micro_batch=micro_batch, precision=kind)
        loss = add_gradients(model, batch, options, torch.device("cpu"))
        norm = torch.nn.utils.get_total_norm(
            [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        )
        steps.append((loss.item(), norm.item()))
    assert steps[1] == pytest.approx(steps[0], rel=near)
