"""What a step's package offers to pipelines, without what it costs: hera is imported when a pipeline asks for it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(module: str, *names: str) -> Callable[[str], Any]:
    """A package's `__getattr__`: these names are found in `module`, which is imported with the first of them."""
    package = module.rpartition(".")[0]

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package} has no {name}")
        return getattr(import_module(module), name)

    return found
