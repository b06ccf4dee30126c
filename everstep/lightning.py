"""Checkpoints of a Lightning Trainer, through a callback:

    everstep.init()  # before the Trainer
    sampler = everstep.ElasticSampler(dataset, global_batch=64)
    checkpoints = EverstepCallback(sampler)
    trainer = Trainer(max_steps=1000, callbacks=[checkpoints], use_distributed_sampler=False)
    trainer.fit(module, DataLoader(dataset, batch_sampler=sampler), ckpt_path=checkpoints.resume())

Every optimizer step is staged. Weights, optimizers, schedules, the loops, other callbacks, random numbers and the place
in the data come back bit for bit. For one device and DDP; with Fabric, a loop uses `everstep.Checkpointer` itself.
Import `pytorch_lightning` or `lightning.pytorch`, whichever you use, before this module.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from everstep.checkpoints import Checkpointer, Checkpoints
from everstep.dataset_batches import ElasticSampler
from everstep.random_state import gather_random_states, set_random_state
from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.checkpoint.shard.reshard import assemble_state

__all__ = ["EverstepCallback"]

_ONE, _OTHER = "pytorch_lightning", "lightning.pytorch"


def _find_package() -> Any:
    """Lightning has two packages with classes of their own: the one that the script has imported, or what there is."""
    is_other = _OTHER in sys.modules or (_ONE not in sys.modules and find_spec("lightning") is not None)
    return import_module(_OTHER if is_other else _ONE)


pl = _find_package()

NEWEST = "everstep:newest"
"""The path that stands for the state this round starts from."""


class EverstepCallback(pl.Callback):
    """Saves after every optimizer step (or every `every` of them) and restores when `fit` begins."""

    def __init__(self, sampler: ElasticSampler | None = None, directory: str = "", every: int = 1) -> None:
        """`sampler`: of the training data; the callback advances it. None: the dataloader keeps its own place, as a
        StatefulDataLoader does. Under `everstep launch` the agent keeps the checkpoints; else the store `directory`, or
        EVERSTEP_STORE."""
        self._sampler, self._every = sampler, every
        self._checkpoints = Checkpoints(directory)
        self._checkpoints.session.loop = None
        self._checkpointer: Checkpointer | None = None
        self._saved: dict[str, Any] = {}
        """The state that is restored; empty: none, or it is restored."""
        self._step = 0
        """Optimizer steps done after the newest batch."""

    def resume(self) -> str | None:
        """The argument for `trainer.fit(ckpt_path=...)`; None if there is nothing to resume. Call it on every rank.

        Raises RestoreError if no checkpoint can be read.
        """
        shards = self._checkpoints.shards()
        if not shards:
            return None
        self._saved = assemble_state(shards)[0]
        return NEWEST

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raises StateError for a strategy whose state this callback cannot keep."""
        if type(trainer.strategy) not in (pl.strategies.DDPStrategy, pl.strategies.SingleDeviceStrategy):
            raise StateError(
                f"{type(trainer.strategy).__name__}: EverstepCallback keeps what is the same on every rank; "
                "use DDP, or Fabric with everstep.Checkpointer"
            )
        trainer.strategy.checkpoint_io = _Newest(trainer.strategy.checkpoint_io, self)

    def read_checkpoint(self) -> dict[str, Any]:
        """What Lightning loads: its own checkpoint, with the counters of batches set to what the sampler still has.

        Raises KeyError: no checkpoint of a Trainer was restored.
        """
        checkpoint = self._saved["lightning"]
        if self._sampler is not None:
            self._sampler.load_state_dict(self._saved["sampler"])
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
            # A sampler's epoch is what is left of it, counted from 0. As the state is of the end of a batch, Lightning
            # adds the last completed one itself, and begins the next epoch if all are complete.
            samples_done = len(self._sampler) if self._saved["epoch_done"] else 0
            progress.update(dict.fromkeys(progress, samples_done), completed=samples_done - 1)
        return checkpoint

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The random state is set last: what comes before draws numbers, too."""
        self._step = trainer.global_step
        if self._saved:
            set_random_state(self._saved["random"])
            if self._saved["epoch_done"]:
                iter(trainer.fit_loop._data_fetcher)  # The next epoch's iterator draws a number, after that state.
            self._saved = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Show what this worker does."""
        self._checkpoints.beacon(trainer.global_step + 1, "batch")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stage the state, if the batch ended an optimizer step."""
        if self._sampler is not None:
            self._sampler.advance()
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._step % self._every == 0:
            self._save(trainer)
        logged = trainer.callback_metrics.items()
        self._checkpoints.report(self._step, {name: float(value) for name, value in logged if value.numel() == 1})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Wait until the last state is in the store."""
        if self._step:
            state = self._save(trainer)
            assert self._checkpointer is not None
            self._checkpointer.finish(state)

    def _save(self, trainer: Any) -> dict[str, Any]:
        state = {
            "lightning": trainer._checkpoint_connector.dump_checkpoint(weights_only=False),
            "random": gather_random_states(),
            "sampler": self._sampler.state_dict() if self._sampler is not None else None,
            "epoch_done": bool(trainer.is_last_batch),
        }
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(state, self._checkpoints)
        self._checkpointer.save(self._step, state)
        return state


class _Newest(pl.plugins.CheckpointIO):
    """Lightning's interface for writing and reading its checkpoints: one path is ours, all others are files."""

    def __init__(self, files: Any, callback: EverstepCallback) -> None:
        self._files, self._callback = files, callback

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a file, as ModelCheckpoint asks."""
        self._files.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, map_location: Any = None, **options: Any) -> dict[str, Any]:
        """The state that is restored, or a file's."""
        if str(path) == NEWEST:
            return self._callback.read_checkpoint()
        return self._files.load_checkpoint(path, map_location, **options)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file."""
        self._files.remove_checkpoint(path)
