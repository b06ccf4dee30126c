"""Everstep: training pipelines that survive.

In a pipeline: `submit`, `parameters`, `parameter`. In a training script: `init`, `batches`, `Checkpointer`, `report`,
`phase`. Importing this package costs nothing; each name imports its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.pipeline import parameter, parameters, submit
    from everstep.training import Batch, Checkpointer, Context, batches, init, phase, report

__all__ = [
    "Batch", "Checkpointer", "Context", "batches", "init", "parameter", "parameters", "phase", "report", "submit",
]  # fmt: skip

_PIPELINE = {"parameter", "parameters", "submit"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    return getattr(import_module("everstep.pipeline" if name in _PIPELINE else "everstep.training"), name)
