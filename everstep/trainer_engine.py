"""The DeepSpeed engine of a Hugging Face Trainer, for `everstep.huggingface.EverstepCallback`."""

import os
from pathlib import Path
from typing import Any

import torch
import transformers.trainer
from transformers.trainer import Trainer

from everstep.deepspeed import engine_state, load_engine
from everstep.random_state import random_state
from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.shard.reshard import Shard, read_value
from everstep.runtime.checkpoint.worker.checkpointer import RankState

_trainer_module: Any = transformers.trainer
_SCHEDULE = "scheduler.pt"
"""The file in which the Trainer looks for its schedule."""


class TrainerEngine:
    """What a rank of such a Trainer keeps and restores."""

    def __init__(self, trainer: Trainer, shards: list[Shard]) -> None:
        """`shards`: of the checkpoint to resume from; empty: none."""
        self._trainer, self._shards = trainer, shards

    def prepare(self, folder: Path) -> None:
        """Leave the schedule in the folder from which the Trainer will resume; the engine's own state will come from
        the shards. Raises RestoreError."""
        torch.save(_read_state(self._shards[0], "schedule"), folder / _SCHEDULE)
        load_from_files = _trainer_module.deepspeed_load_checkpoint

        def load(engine: Any, checkpoint_path: str, load_module_strict: bool = True) -> None:
            _trainer_module.deepspeed_load_checkpoint = load_from_files
            load_engine(engine, self._shards, "engine", load_module_strict=load_module_strict)

        # The Trainer makes its engine in `train`, and loads it at once: there is no other place between the two.
        _trainer_module.deepspeed_load_checkpoint = load

    def state(self, trainer_state: dict[str, Any]) -> RankState:
        """The state of this rank now."""
        trainer = self._trainer
        schedule: Any = trainer.lr_scheduler
        return RankState(
            engine=engine_state(trainer.model_wrapped, f"global_step{trainer.state.global_step}", {}),
            schedule=schedule.state_dict(),
            trainer=trainer_state,
            random={f"rank{os.environ.get('RANK', '0')}": random_state()},
        )

    def release_shards(self) -> tuple[int, list[str]]:
        """When all else is loaded: the restored iteration, and the random states of its ranks. Raises RestoreError."""
        states = [state for shard in self._shards for state in _read_state(shard, "random").values()]
        iteration = int(self._shards[0].saved["iteration"])
        self._shards = []
        return iteration, states


def _read_state(shard: Shard, key: str) -> Any:
    try:
        return read_value(shard, shard.saved["state"][key])
    except KeyError:
        raise RestoreError("the checkpoint is not of a Trainer with DeepSpeed") from None
