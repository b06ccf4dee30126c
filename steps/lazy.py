"""Lazy attributes for a step's package: hera is imported only when a pipeline asks for them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(module: str, *names: str) -> Callable[[str], Any]:
    """A package's `__getattr__`: these names are in `module`, which is imported on first use."""
    package = module.rpartition(".")[0]

    def import_attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package} has no {name}")
        return getattr(import_module(module), name)

    return import_attribute
