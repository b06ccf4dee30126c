"""What a training script uses: `init`, `batches`, `Checkpointer`, `report`, `phase`, `track`.

    job = everstep.init()
    batches = everstep.batches(dataset, sequence_length=256, global_batch=16, seed=0, iterations=200)
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpointer = everstep.Checkpointer(state)
    checkpointer.load(state)
    for batch in batches:
        ...
        checkpointer.save(batch.iteration, state)
        everstep.report(loss=loss.item())
    checkpointer.finish(state)

Without an agent the same script runs in one process: no beacon, and checkpoints only where EVERSTEP_STORE says.
"""

import atexit
import os
import time
from datetime import timedelta
from typing import cast

import torch

from everstep import trackers
from everstep.checkpoints import Checkpointer
from everstep.ddp_buckets import fix_buckets
from everstep.group_sockets import GroupSockets
from everstep.kept_values import KeptValues
from everstep.process_group import join
from everstep.runtime.checkpoint.worker.agreement import GROUP_BACKENDS
from everstep.runtime.checkpoint.worker.checkpointer import map_segment_ahead
from everstep.session import Context, begin, context_from_environment, current, mapped_segment
from everstep.token_batches import Batch, Batches, Order

__all__ = ["Batch", "Batches", "Checkpointer", "Context", "batches", "init", "phase", "report", "track"]


def init(seed: int = 0, timeout: timedelta = timedelta(minutes=10)) -> Context:
    """Join the process group, greet the agent, and seed torch so that every rank builds the same model.

    The variables are torchrun's: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Without WORLD_SIZE: a single process.

    Raises LinkError (the agent is gone) and whatever torch.distributed raises.
    """
    return enter(seed, timeout)


def enter(
    seed: int, timeout: timedelta, kept_values: KeptValues | None = None, sockets: GroupSockets | None = None
) -> Context:
    """`init` for this process's first round or a later one. `kept_values` and `sockets` outlive the round."""
    context = context_from_environment(kept_values or KeptValues())
    ahead = map_segment_ahead(context.link, mapped_segment())
    if context.device.type != "cpu":
        torch.accelerator.set_device_index(context.device)
    if context.world_size > 1 or "WORLD_SIZE" in os.environ:
        join(context.rank, GROUP_BACKENDS[context.device.type], timeout, sockets)
        fix_buckets()
    torch.manual_seed(seed)
    begin(context, {"joined_at": time.time()}, ahead)
    return context


def batches(
    dataset: str, *, sequence_length: int, global_batch: int, seed: int = 0, iterations: int | None = None
) -> Batches:
    """This rank's share of each global batch of `dataset` (a URI from steps.preprocess), endless or `iterations` long.

    `sequence_length` is in tokens, `global_batch` in samples over all ranks. Put it into the checkpointed state; it
    then continues after the last applied sample. Raises DatasetError, StoreError, and RuntimeError before `init`.
    """
    return Batches(current("batches"), dataset, sequence_length, Order(global_batch, seed, iterations))


def report(**values: float | int | str) -> None:
    """Add to this iteration's telemetry. Rank 0's values are the job's; average them first with `Context.mean`.

    In a loop of your own it may stand before or after `save`. After it, an iteration's values are sent when the next
    one is saved: a fault in between loses them. Raises RuntimeError before `init`.
    """
    current("report").report(values)


def phase(name: str) -> None:
    """Name what this worker does now ("forward", "data"): if it hangs, the report shows that name.

    The seconds of the phase "evaluation" are reported as such. Raises RuntimeError before `init`.
    """
    current("phase").beacon(name)


def track(to: trackers.Kind | trackers.Callback, folder: str = "") -> None:
    """Also write each iteration's figures (loss, the values of `report`, seconds, stall) to an experiment tracker.

    `to`: `tensorboard`, `mlflow`, `wandb`, or a function of (iteration, figures), called on rank 0. `folder`: where the
    tracker writes; "": `trackers/` of the run's folder. After a fault the tracker's run continues. Raises
    ImportError if the tracker's package is missing, ValueError for another name, RuntimeError before `init`, and
    whatever the tracker raises.
    """
    session = current("track")
    if session.context.rank == 0 and not session.context.rehearses:
        name = to if isinstance(to, str) else getattr(to, "__qualname__", repr(to))
        if name not in session.trackers:  # With surviving workers, a script calls this in each round.
            session.trackers[name] = to if callable(to) else trackers.open_tracker(cast(trackers.Kind, to), folder)
            if session.loop is not None:  # Before the tracker's own end: functions at exit run in reverse order.
                atexit.register(session.loop.end_at_exit)
