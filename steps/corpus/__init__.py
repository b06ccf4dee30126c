"""Text for training: from files of the user's, or from what every Python carries, to one lm-dataformat corpus.

`config` lists the parameters, `sources` finds and reads the input, `run` makes the corpus. Imported without its heavy
parts, so that pipelines can declare it and the step itself starts without hera.
"""

from typing import TYPE_CHECKING, Any

from steps.corpus.config import Config

if TYPE_CHECKING:
    from steps.corpus.template import task, template

__all__ = ["Config", "task", "template"]


def __getattr__(name: str) -> Any:
    if name not in ("task", "template"):
        raise AttributeError(f"module {__name__} has no {name}")
    from importlib import import_module

    return getattr(import_module("steps.corpus.template"), name)
