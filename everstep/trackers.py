"""Experiment trackers behind one callback: TensorBoard, MLflow, Weights & Biases, or a function of the script's own.

A job has one run in a tracker, whose name is the job's: a worker that takes over after a fault continues it. No
tracker is a dependency of Everstep; each is imported when a script asks for it.
"""

import hashlib
import importlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

Kind = Literal["tensorboard", "mlflow", "wandb"]
Callback = Callable[[int, Mapping[str, float]], None]
"""Called on rank 0 with (iteration, its figures), once an iteration."""
TAG = "everstep.job"
"""The tag by which an MLflow run is found again."""
_OWN = ("first_sample", "joined_at")
"""Facts other than figures of an iteration."""


def figures(line: Mapping[str, float | int | str]) -> dict[str, float]:
    """The finite numbers of an iteration's telemetry."""
    return {
        name: float(value)
        for name, value in line.items()
        if name not in _OWN and isinstance(value, int | float) and math.isfinite(value)
    }


def open_tracker(kind: Kind, folder: str, environment: Mapping[str, str] = os.environ) -> Callback:
    """The callback that writes to that tracker.

    `folder`: where it writes; "": `trackers/KIND` of the run's folder, or of the working directory. MLflow takes a
    server from MLFLOW_TRACKING_URI instead; Weights & Biases is offline unless WANDB_MODE says otherwise.
    Raises ImportError, ValueError.
    """
    place = folder or str(Path(environment.get("EVERSTEP_RUN_DIR", "."), "trackers", kind))
    job = environment.get("EVERSTEP_JOB", "everstep")
    if kind == "tensorboard":
        return _tensorboard(place, job)
    if kind == "mlflow":
        return _mlflow(environment.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(place).absolute()}/mlflow.db", job)
    if kind == "wandb":
        return _wandb(place, job, environment.get("WANDB_MODE") or "offline")
    raise ValueError(f"tracker {kind!r}: give tensorboard, mlflow, wandb, or a function")


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this tracker needs the package {package}: pip install {package} ({error})") from None


def _tensorboard(place: str, job: str) -> Callback:
    module = _import("torch.utils.tensorboard", "tensorboard")
    writers: list[Any] = []

    def write(iteration: int, values: Mapping[str, float]) -> None:
        if not writers:  # What an earlier worker wrote from this iteration on was rolled back.
            writers.append(module.SummaryWriter(str(Path(place, job)), purge_step=iteration))
        for name, value in values.items():
            writers[0].add_scalar(name, value, iteration)
        writers[0].flush()  # Else a worker that ends, or is killed, takes up to two minutes with it.

    return write


def _mlflow(uri: str, job: str) -> Callback:
    mlflow = _import("mlflow", "mlflow")
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    client = mlflow.MlflowClient(tracking_uri=uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "everstep")
    experiment_before = client.get_experiment_by_name(name)
    experiment = experiment_before.experiment_id if experiment_before else client.create_experiment(name)
    tracker_runs = client.search_runs([experiment], f"tags.`{TAG}` = '{job}'", max_results=1)
    run = tracker_runs[0] if tracker_runs else client.create_run(experiment, tags={TAG: job}, run_name=job)

    def write(iteration: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            client.log_metric(run.info.run_id, key, value, step=iteration)

    return write


def _wandb(place: str, job: str, mode: str) -> Callback:
    wandb = _import("wandb", "wandb")
    Path(place).mkdir(parents=True, exist_ok=True)
    identity = hashlib.sha256(job.encode()).hexdigest()[:16]
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "everstep"), name=job, id=identity, resume="allow", dir=place, mode=mode
    )
    run.define_metric("iteration")
    run.define_metric("*", step_metric="iteration")
    return lambda iteration, values: run.log({"iteration": iteration, **values})
