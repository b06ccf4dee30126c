"""Checkpoints of torchtitan's Trainer, in memory at every step, as its checkpoint manager:

    config.checkpoint = CheckpointManager.Config()
    trainer = config.build()
    trainer.train()

Model parts, optimizers, schedules, the step and the position of each rank's dataloader are restored bit for bit. A
number of ranks that differs from that of the checkpoint is refused, because torchtitan's dataloaders cannot
continue with it. The figures that the Trainer logs are the job's telemetry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingImports]
from torchtitan.components.checkpointer.base import (  # pyright: ignore[reportMissingImports]
    DATALOADER,
    LR_SCHEDULER,
    MODEL,
    OPTIMIZER,
    TRAIN_STATE,
    BaseCheckpointManager,
    ModelWrapper,
)

from everstep.checkpoints import Checkpointer, Checkpoints
from everstep.runtime.checkpoint.errors import StateError

__all__ = ["CheckpointManager"]


class CheckpointManager(BaseCheckpointManager):
    """Keeps the Trainer's states. Of torchtitan's fields `enable` and `interval` count."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        """For `Trainer.Config.checkpoint`."""

        enable: bool = True
        interval: int = 1

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: list[nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        **others: Any,
    ) -> None:
        """As torchtitan's Trainer builds it. Raises StoreError."""
        self.enable, self.save_future = config.enable, None
        self._interval = config.interval
        self._checkpoints = Checkpoints()
        self._checkpoints.session.loop = None
        self._positions = _Positions(dataloader)
        self._state = {
            MODEL: ModelWrapper(model_parts),
            OPTIMIZER: _Part(optimizers),
            LR_SCHEDULER: lr_schedulers,
            DATALOADER: self._positions,
            **states,
        }
        self._checkpointer: Checkpointer | None = None
        self._figures: dict[str, float] = {}
        self._hear(states[TRAIN_STATE].metrics_processor)

    def _hear(self, metrics: Any) -> None:
        """Keep the newest figures that are logged."""
        log = metrics.log

        def log_and_keep(step: int, global_avg_loss: float, *figures: Any, **more: Any) -> None:
            self._figures = {"loss": float(global_avg_loss)}
            log(step, global_avg_loss, *figures, **more)

        metrics.log = log_and_keep

    def _load(self, step: int = -1) -> bool:
        if step != -1:
            raise StateError(f"load_step={step}: everstep restores the newest state; leave it out")
        self._checkpointer = Checkpointer(self._state, self._checkpoints)
        return self._checkpointer.load(self._state) > 0

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        assert self._checkpointer is not None, "the Trainer loads first"
        is_due = last_step or curr_step % self._interval == 0
        if is_due:
            self._positions.gather()
            self._checkpointer.save(curr_step, self._state)
        self._checkpoints.report(curr_step, self._figures)
        self._checkpoints.beacon(curr_step + 1, "step")
        self._figures = {}
        if last_step:
            self._checkpointer.finish(self._state)
        return is_due

    def _wait_for_saving(self) -> None:
        """No-op: the agent saves."""

    def _maybe_wait_for_staging(self) -> None:
        """No-op: the checkpointer waits by itself before the optimizer changes what is still copied."""

    def _close(self) -> None:
        """No-op: the last step has waited."""


class _Part:
    """torchtitan's container of optimizers, which is an Optimizer by name alone: its state has its own keys."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def state_dict(self) -> dict[str, Any]:
        return self._container.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._container.load_state_dict(state_dict)


class _Positions:
    """The position of every rank's dataloader: what shards of the checkpoint have alike."""

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._every: Sequence[Any] = []

    def gather(self) -> None:
        """Ask all ranks, each of which calls it."""
        own = self._dataloader
        # torchtitan's own loaders would pickle their state.
        position = StatefulDataLoader.state_dict(own) if isinstance(own, StatefulDataLoader) else own.state_dict()
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, position)
        self._every = every

    def state_dict(self) -> dict[str, Any]:
        return {str(rank): position for rank, position in enumerate(self._every)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises StateError for a checkpoint of another number of ranks."""
        if len(state_dict) != dist.get_world_size():
            raise StateError(
                f"torchtitan's dataloaders divided the data among {len(state_dict)} ranks, and this job has "
                f"{dist.get_world_size()}; start it with {len(state_dict)}"
            )
        own, position = self._dataloader, state_dict[str(dist.get_rank())]
        if isinstance(own, StatefulDataLoader):
            StatefulDataLoader.load_state_dict(own, position)
        else:
            own.load_state_dict(position)
