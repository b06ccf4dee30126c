"""Everstep: training pipelines that survive.

In a pipeline: `submit`, `parameters`, `parameter`, `check_step`, `LocalFile`; in a step of your own `step`, `progress`.
In a training script: `init`, `batches`, `loader`, `shards`, `Checkpointer`, `Replay`, `report`, `track`, `phase`,
`results`.
Importing this package costs nothing; each name imports its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everstep.version import VERSION

if TYPE_CHECKING:
    from everstep import errors as errors
    from everstep import job as job
    from everstep.data_shards import Shard, shards
    from everstep.dataset_batches import ElasticSampler, LoadedBatch, LoadedPart, loader
    from everstep.job_results import results
    from everstep.local_files import LocalFile
    from everstep.pipeline import check_step, parameter, parameters, submit
    from everstep.reentry import main
    from everstep.replay import Replay
    from everstep.steps.own import progress, step
    from everstep.training import Batch, Checkpointer, Context, batches, init, phase, report, track

__version__ = VERSION
__all__ = [
    "Batch", "Checkpointer", "Context", "ElasticSampler", "LoadedBatch", "LoadedPart", "LocalFile", "Replay", "Shard",
    "__version__", "batches", "check_step", "init", "loader", "main", "parameter", "parameters", "phase",
    "progress", "report", "results", "shards", "step", "submit", "track",
]  # fmt: skip

_PIPELINE = dict.fromkeys(("check_step", "parameter", "parameters", "submit"), "everstep.pipeline")
_DATA = {
    **dict.fromkeys(("ElasticSampler", "LoadedBatch", "LoadedPart", "loader"), "everstep.dataset_batches"),
    **dict.fromkeys(("Shard", "shards"), "everstep.data_shards"),
}
_SCRIPT = {
    "LocalFile": "everstep.local_files",
    "main": "everstep.reentry",
    "Replay": "everstep.replay",
    "results": "everstep.job_results",
}
_STEP = dict.fromkeys(("progress", "step"), "everstep.steps.own")
_MODULES = {**_STEP, **_PIPELINE, **_DATA, **_SCRIPT}
"""Where a name is, if not in `everstep.training`."""
_PUBLIC_MODULES = ("errors", "job")
"""`except everstep.errors.RestoreError` needs no import of its own."""


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_MODULES:
        return import_module(f"everstep.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "everstep.training")), name)
