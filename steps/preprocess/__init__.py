"""Text to tokens, on Spark: a corpus to a dataset in the store, or files to Megatron's indexed datasets.

`config` lists the parameters, `arguments` reads them as Megatron's command line does. `run` is the flow for a corpus,
`prefix` the flow for files (`inputs`) and --output-prefix (`place`), `training` the one for --train-tokenizer. All
build datasets with `build`: `plan` cuts the input into byte ranges (pure); `job` is the Spark job; `shard` is what one
of its tasks does in a `workspace` (`cleaning` keeps or drops a document, `encoding` turns it into tokens, `parts` are
its files); `duplicates` finds repeated documents; `assemble` joins the shards; `page` shows the result. `vocabulary`
finds or trains the tokenizer. `session` starts and ends Spark on one of the `masters` (`gateway`: its Java process);
`executor` is what its pods run. The package imports no heavy parts, so that pipelines can declare the step and the step
itself starts without hera.
"""

from typing import TYPE_CHECKING

from everstep.steps.lazy import lazily
from everstep.steps.preprocess.config import Config

if TYPE_CHECKING:
    from everstep.steps.preprocess.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.preprocess.template", "task")
