"""Text to tokens, on Spark: a corpus to a Megatron indexed dataset.

`config` lists the parameters; `run` is the flow; `plan` cuts the corpus into byte ranges (pure); `shard` is what one
Spark task does; `encoding` turns text into tokens; `vocabulary` finds or trains the tokenizer; `session` starts and
ends Spark; `assemble` puts the shards together. Imported without its heavy
parts, so that pipelines can declare it and the step itself starts without hera.
"""

from typing import TYPE_CHECKING, Any

from steps.preprocess.config import Config

if TYPE_CHECKING:
    from steps.preprocess.template import task, template

__all__ = ["Config", "task", "template"]


def __getattr__(name: str) -> Any:
    if name not in ("task", "template"):
        raise AttributeError(f"module {__name__} has no {name}")
    from importlib import import_module

    return getattr(import_module("steps.preprocess.template"), name)
