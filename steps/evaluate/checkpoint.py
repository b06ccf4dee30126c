"""A checkpoint of steps/train/llama.py, read from the store: the model's weights, its config, the training's settings."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.store import NoSuchKey, open_store
from steps.entry import StepError

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

MODEL = "model."
"""Prefix of the weights' names in the shard."""


@dataclass(frozen=True)
class Trained:
    """What the training left."""

    weights: dict[str, "torch.Tensor"]
    """By name in the model's state_dict."""
    config: dict[str, Any]
    """The model's config.json."""
    settings: dict[str, Any]
    """The flags of the training script."""
    iteration: int

    def build(self) -> "LlamaForCausalLM":
        """The model with those weights, float32."""
        import torch
        from transformers.models.llama import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**{**self.config, "dtype": "float32"}))
        with torch.no_grad():
            own = model.state_dict()
            if missing := sorted(set(own) - set(self.weights)):
                raise StepError(f"the checkpoint lacks {missing[0]} and {len(missing) - 1} more weights of its model")
            for name, weight in own.items():
                weight.copy_(self.weights[name])
        return model
