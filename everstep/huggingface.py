"""Checkpoints of a Hugging Face Trainer, through a callback:

    checkpoints = EverstepCallback()
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[checkpoints])
    trainer.train(resume_from_checkpoint=checkpoints.resume())

Every optimizer step is staged. Weights, optimizer, schedule, loss scale, the Trainer's own state and each rank's random
number generators are restored bit for bit; the Trainer itself skips the batches that are done, which it counts in
batches of the current number of ranks. Works for one process, for DDP, and for FSDP2 (`fsdp=True`) and DeepSpeed
(`deepspeed=...`), where each rank keeps its own part; for models of PEFT not with FSDP2. With DeepSpeed the callback
needs the Trainer: `checkpoints.resume(trainer)`.
"""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from transformers.trainer import Trainer, _is_peft_model  # pyright: ignore[reportPrivateImportUsage]
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from everstep.checkpoints import Checkpointer, Checkpoints
from everstep.ddp_buckets import fix_buckets
from everstep.random_state import gather_random_states, random_state, set_random_state
from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.checkpoint.state.flatten import decode

if TYPE_CHECKING:
    from everstep.trainer_engine import TrainerEngine

__all__ = ["EverstepCallback"]

_EMPTY_FILE = "nothing.safetensors"
_WEIGHTS_FILE = "model.safetensors"
"""The Trainer loads what is in it, and no adapter of PEFT."""
_OF_ENGINE = "DeepSpeedOptimizerWrapper"
"""What Accelerate calls an optimizer that is a DeepSpeed engine's."""


class EverstepCallback(TrainerCallback):
    """Saves after every optimizer step (or every `every` steps) and restores when training begins."""

    def __init__(self, directory: str = "", every: int = 1) -> None:
        """Under `everstep launch` the agent keeps the checkpoints; otherwise the store `directory` does, or
        EVERSTEP_STORE."""
        fix_buckets()
        self._checkpoints = Checkpoints(directory)
        self._checkpoints.session.loop = None
        self._every = every
        self._model: Any = None
        self._checkpointer: Checkpointer | None = None
        self._state: dict[str, Any] = {}
        self._is_sharded = False
        """Does each rank keep its own part, and its own random state in it?"""
        self._unsettled: list[str] = []
        """The restored random states, until the first step begins."""
        self._is_unsaved = False
        """Is a step done that was not staged yet?"""
        self._folder = ""
        self._engine: TrainerEngine | None = None
        """With DeepSpeed."""

    def resume(self, trainer: Trainer | None = None) -> str | None:
        """The argument for `trainer.train(resume_from_checkpoint=...)`: a folder with the Trainer's position.

        None if there is nothing to resume. Call it after the Trainer is constructed, with DeepSpeed with it. The
        weights come from the checkpoint itself, when training begins. Raises RestoreError if no checkpoint can be read.
        """
        shards = self._checkpoints.shards()
        if trainer is not None and trainer.is_deepspeed_enabled:
            from everstep.trainer_engine import TrainerEngine

            self._engine = TrainerEngine(trainer, shards)
        if not shards:
            return None
        trainer_state = decode(shards[0].saved["state"]["trainer"], str)
        self._folder = tempfile.mkdtemp(prefix="everstep-resume-")
        folder = Path(self._folder)
        (folder / "trainer_state.json").write_text(json.dumps(trainer_state))
        if self._engine is not None:
            self._engine.prepare(folder)
            return self._folder
        if _is_peft_model(self._model):
            save_file({}, folder / _WEIGHTS_FILE)
            return self._folder
        keys = dict.fromkeys(self._model.state_dict(), _EMPTY_FILE) if self._model is not None else {}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": keys}))
        save_file({}, folder / _EMPTY_FILE)
        return self._folder

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Raises StateError for settings whose state this callback cannot keep."""
        settings = args.fsdp_config if isinstance(args.fsdp_config, dict) else {}
        version = settings.get("version", 2)
        if args.fsdp and int(version) != 2:
            raise StateError(f"fsdp_config version {version}: EverstepCallback keeps FSDP2 alone; leave it out")
        if args.fsdp and _is_peft_model(kwargs["model"]):
            raise StateError("fsdp with a model of PEFT: EverstepCallback cannot restore it; leave fsdp out")
        self._model = kwargs["model"]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore, if the Trainer was told to resume. Raises StateError if it uses DeepSpeed, and `resume` was called
        without it."""
        optimizer = kwargs["optimizer"]
        if self._engine is None and type(optimizer).__name__ == _OF_ENGINE:
            raise StateError("with DeepSpeed the callback needs the Trainer; write checkpoints.resume(trainer)")
        self._is_sharded = bool(args.fsdp)
        if self._engine is None:
            self._state = {
                "model": kwargs["model"],
                "optimizer": getattr(optimizer, "optimizer", optimizer),
                "schedule": getattr(kwargs["lr_scheduler"], "scheduler", kwargs["lr_scheduler"]),
            }
            if (scaler := getattr(optimizer, "scaler", None)) is not None:
                self._state["scaler"] = scaler
        self._update_state(state)
        self._checkpointer = Checkpointer(self._state, self._checkpoints)
        if self._folder:
            if self._engine is None:
                restored_step = self._checkpointer.load(self._state)
                self._unsettled = self._state["random"]
            else:
                restored_step, self._unsettled = self._engine.release_shards()
            if restored_step != state.global_step:
                raise StateError(
                    f"the Trainer resumes after step {state.global_step}, "
                    f"the checkpoint belongs to step {restored_step}"
                )
            set_random_state(self._unsettled)
            shutil.rmtree(self._folder)
            self._folder = ""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stage the state after the last step of the epoch before, with all that followed from it."""
        self._save_step(state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stage the state after the last step. Before that one was logged, evaluated and saved by the Trainer, a fault
        repeats it: a Trainer that resumes after a step does nothing of it again.

        Restore the random state once the first batch after a resume is there: fetching that batch drew random numbers
        before the save, too.
        """
        self._save_step(state)
        if self._unsettled and state.epoch and state.epoch % 1:
            set_random_state(self._unsettled)
        self._unsettled = []
        self._checkpoints.beacon(state.global_step + 1, "step")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A spare ends its rehearsal here: what follows writes files."""
        self._checkpoints.session.end_rehearsal()
        self._is_unsaved = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the Trainer's figures as the job's telemetry."""
        facts = {name: value for name, value in kwargs["logs"].items() if isinstance(value, float | int)}
        self._checkpoints.report(state.global_step, facts)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Wait until the last state is in the store."""
        assert self._checkpointer is not None
        self._save(state)
        self._checkpointer.finish(self._state)

    def _save_step(self, state: TrainerState) -> None:
        if self._is_unsaved and state.global_step % self._every == 0:
            self._save(state)
        self._is_unsaved = False

    def _save(self, state: TrainerState) -> None:
        assert self._checkpointer is not None
        self._update_state(state)
        self._checkpointer.save(state.global_step, self._state)

    def _update_state(self, state: TrainerState) -> None:
        """Have it as it is now. Every rank must call it."""
        if self._engine is not None:
            self._state = self._engine.state(_trainer_state(state))
            return
        self._state["trainer"] = _trainer_state(state)
        self._state["random"] = [random_state()] if self._is_sharded else gather_random_states()


def _trainer_state(state: TrainerState) -> dict[str, Any]:
    """The state as the Trainer writes it to trainer_state.json."""
    return json.loads(json.dumps(asdict(state)))
