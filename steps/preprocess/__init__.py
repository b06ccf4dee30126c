"""Text to tokens, on Spark: a corpus to a dataset in the store, or files to Megatron's indexed datasets.

`config` lists the parameters, `arguments` reads them as Megatron's command line does; `run` is the flow for a corpus,
`prefix` for files (`inputs`) and --output-prefix (`place`), `training` for --train-tokenizer. Both make datasets by
`build`: `plan` cuts the input into byte ranges (pure); `job` is the Spark job, `shard` what one of its tasks does in a
`workspace` (`cleaning` keeps a document or not, `encoding` turns it into tokens, `parts` are its files), `duplicates`
came before in the input, `assemble` puts the shards together, `page` shows them. `vocabulary` finds or trains the
tokenizer; `session` starts and ends Spark on one of the `masters` (`gateway`: its Java); `executor` is what its pods
run. Imported without its heavy parts, so that pipelines can declare it and the step itself starts without hera.
"""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.preprocess.config import Config

if TYPE_CHECKING:
    from everstep.steps.preprocess.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.preprocess.template", "task")
