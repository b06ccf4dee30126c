"""The perplexity of a causal language model on tokens, and a sample of its text. Pure functions over a model."""

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    from everstep.runtime.data import Tokens


def evenly_spaced(total: int, count_at_most: int) -> list[int]:
    """At most `count_at_most` of 0..total-1, evenly spaced, the same on every call."""
    count = min(total, count_at_most)
    return [index * total // count for index in range(count)]


def perplexity(model: "LlamaForCausalLM", tokens: "Tokens", length: int, windows: int, batch: int = 8) -> float:
    """exp of the mean negative log likelihood per token over `windows` stretches of `length` targets.

    Args:
        tokens: 1-D, whole numbers; a stretch i is tokens[i*length : i*length + length + 1].
    """
    import torch

    starts = evenly_spaced((len(tokens) - 1) // length, windows)
    total = 0.0
    with torch.inference_mode():
        for first in range(0, len(starts), batch):
            rows = [tokens[i * length : i * length + length + 1] for i in starts[first : first + batch]]
            block = torch.from_numpy(np.stack(rows).astype(np.int64))
            logits = model(input_ids=block[:, :-1], use_cache=False).logits
            total += _summed_loss(logits, block[:, 1:])
    mean = total / (len(starts) * length)
    return math.exp(mean) if mean < 700 else math.inf


def _summed_loss(logits: "torch.Tensor", targets: "torch.Tensor") -> float:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum").item()


def generate(model: "LlamaForCausalLM", prompt: np.ndarray, count: int, seed: int = 0, top: int = 40) -> list[int]:
    """`count` tokens that follow `prompt` (1-D), each drawn from the `top` likeliest; the same for the same seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    inputs = torch.from_numpy(prompt.astype(np.int64))[None]
    cache, tokens_generated = None, []
    with torch.inference_mode():
        for _ in range(count):
            answer = model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            best = answer.logits[0, -1].float().topk(min(top, answer.logits.shape[-1]))
            choice = torch.multinomial((best.values / 0.8).softmax(0), 1, generator=generator)
            inputs = best.indices[choice][None]
            tokens_generated.append(int(inputs))
    return tokens_generated
