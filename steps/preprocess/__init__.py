"""Text to tokens, on Spark: a corpus to a dataset in the store, or files to Megatron's indexed datasets.

`config` lists the parameters, `arguments` reads them as Megatron's command line does; `run` is the flow for a corpus,
`prefix` for files (`inputs`) and --output-prefix (`place`). `plan` cuts the input into byte ranges (pure); `job` is the
Spark job, `shard` what one of its tasks does in a `workspace`, `assemble` puts the shards together. `encoding` turns
text into tokens; `vocabulary` finds or trains the tokenizer; `session` starts and ends Spark. Imported without its
heavy parts, so that pipelines can declare it and the step itself starts without hera.
"""

from typing import TYPE_CHECKING

from steps.lazy import lazily
from steps.preprocess.config import Config

if TYPE_CHECKING:
    from steps.preprocess.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("steps.preprocess.template", "task")
