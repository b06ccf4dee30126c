"""Text to tokens, on Spark: a corpus to a Megatron indexed dataset.

`config` lists the parameters; `run` is the flow; `plan` cuts the corpus into byte ranges (pure); `shard` is what one
Spark task does; `encoding` turns text into tokens; `vocabulary` finds or trains the tokenizer; `session` starts and
ends Spark; `assemble` puts the shards together. Imported without its heavy parts, so that pipelines can declare it.
"""

from steps.preprocess.config import Config
from steps.preprocess.template import task, template

__all__ = ["Config", "task", "template"]
