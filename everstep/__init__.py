"""Everstep: training pipelines that survive.

In a pipeline: `submit`, `parameters`, `parameter`, `check_step`, `LocalFile`. In a training script: `init`, `batches`,
`Checkpointer`, `report`, `phase`, `results`. Importing this package costs nothing; each name imports its module when it
is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everstep.version import VERSION

if TYPE_CHECKING:
    from everstep.job_results import results
    from everstep.local_files import LocalFile
    from everstep.pipeline import check_step, parameter, parameters, submit
    from everstep.training import Batch, Checkpointer, Context, batches, init, phase, report

__version__ = VERSION
__all__ = [
    "Batch", "Checkpointer", "Context", "LocalFile", "__version__", "batches", "check_step", "init", "parameter",
    "parameters", "phase", "report", "results", "submit",
]  # fmt: skip

_PIPELINE = dict.fromkeys(("check_step", "parameter", "parameters", "submit"), "everstep.pipeline")
_MODULES = {**_PIPELINE, "LocalFile": "everstep.local_files", "results": "everstep.job_results"}
"""Where a name is, if not in `everstep.training`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "everstep.training")), name)
