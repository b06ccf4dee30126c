"""Text for training: from the user's files, or from what every Python carries, to one lm-dataformat corpus.

`config` lists the parameters, `sources` finds and reads the input, `run` makes the corpus. The package imports no heavy
parts, so that pipelines can declare the step and the step itself starts without hera.
"""

from typing import TYPE_CHECKING

from everstep.steps.corpus.config import Config
from everstep.steps.lazy import lazily

if TYPE_CHECKING:
    from everstep.steps.corpus.template import task

__all__ = ["Config", "task"]
__getattr__ = lazily("everstep.steps.corpus.template", "task")
