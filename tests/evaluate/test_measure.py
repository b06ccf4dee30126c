"""Perplexity and samples of a very small model."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.steps.entry import StepError
from everstep.steps.evaluate import Config
from everstep.steps.evaluate.measure import evenly_spaced, generate, perplexity


def small_llama(seed: int = 0):
    import torch
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=50)).eval()


@given(st.integers(1, 500), st.integers(1, 500))
def test_windows_are_distinct_in_order_and_no_more_than_asked(total: int, window_count: int) -> None:
    starts = evenly_spaced(total, window_count)
    assert starts == sorted(set(starts))
    assert len(starts) == min(total, window_count)
    assert starts[0] == 0
    assert starts[-1] < total


def test_perplexity_is_that_of_the_loss_of_the_whole_stretch() -> None:
    import torch

    model, tokens = small_llama(), np.random.default_rng(0).integers(0, 50, 61).astype(np.uint16)
    block = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        losses = [
            torch.nn.functional.cross_entropy(
                model(input_ids=block[at : at + 12][None]).logits[0], block[at + 1 : at + 13]
            ).item()
            for at in range(0, 60, 12)
        ]
    assert perplexity(model, tokens, 12, 99, batch=2) == pytest.approx(math.exp(sum(losses) / 5), rel=1e-5)


def test_a_sample_is_as_long_as_asked_and_the_same_for_a_seed() -> None:
    model, prompt = small_llama(), np.array([1, 2, 3], np.uint16)
    sample_ids = generate(model, prompt, 7, seed=3)
    assert len(sample_ids) == 7
    assert sample_ids == generate(model, prompt, 7, seed=3)
    assert sample_ids != generate(model, prompt, 7, seed=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"windows": 0}, "--windows 0"), ({"sample_tokens": -1}, "--sample-tokens -1"), ({"model": "no"}, "--model no")],
)
def test_bad_input_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(StepError, match=words):
        Config(**changes).check()
