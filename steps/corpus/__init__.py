"""Text for training: from files of the user's, or from what every Python carries, to one lm-dataformat corpus.

`config` lists the parameters, `sources` finds and reads the input, `run` makes the corpus. Imported without its heavy
parts, so that pipelines can declare it.
"""

from steps.corpus.config import Config
from steps.corpus.template import task, template

__all__ = ["Config", "task", "template"]
