"""TorchTune's recipes of full finetuning as they stand, for one device or many, by two parts of their config:

    resume_from_checkpoint: true
    checkpointer:
      _component_: everstep.torchtune.RecipeCheckpointer
      recipe: {seed: "${seed}", total_epochs: "${epochs}", max_steps_per_epoch: "${max_steps_per_epoch}"}
      base:  # the config's own checkpointer
        _component_: torchtune.training.FullModelHFCheckpointer
        checkpoint_dir: /models/Llama-3.2-1B
        checkpoint_files: [model.safetensors]
        output_dir: ${output_dir}
        model_type: LLAMA3_2
    metric_logger: {_component_: everstep.torchtune.MetricLogger}

The recipes save after each epoch, and a fault returns them there: model, optimizer and schedule come back bit for bit.
`base` reads the first weights and writes those of each epoch. What the recipe logs is the job's telemetry.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch.distributed as dist
from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]
from torch.distributed.tensor import DTensor
from torchtune.training.checkpointing import DistributedCheckpointer  # pyright: ignore[reportMissingImports]

from everstep.checkpoints import Checkpointer, Checkpoints
from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.checkpoint.shard.reshard import assemble_state
from everstep.session import current_or_first

__all__ = ["MetricLogger", "RecipeCheckpointer"]

training: Any = import_module("torchtune.training")


class RecipeCheckpointer(DistributedCheckpointer):
    """A recipe's `checkpointer`. To a recipe it is a DistributedCheckpointer: every rank saves its own part."""

    def __init__(
        self, base: Mapping[str, Any], recipe: Mapping[str, Any], should_load_recipe_state: bool = True
    ) -> None:
        """`recipe`: the settings of the config that its checkpoints have. Raises StateError without
        `resume_from_checkpoint: true`, StoreError."""
        if not should_load_recipe_state:
            raise StateError(
                "RecipeCheckpointer: set resume_from_checkpoint: true and enable_async_checkpointing: false; "
                "without a checkpoint the recipe begins with the first epoch"
            )
        self._base = import_module("torchtune.config").instantiate(
            OmegaConf.create(dict(base)), should_load_recipe_state=False
        )
        self._recipe = dict(recipe)
        self._checkpoints = Checkpoints()
        self._checkpoints.session.loop = None
        self._checkpointer: Checkpointer | None = None

    def load_checkpoint(self, *args: Any, **settings: Any) -> dict[str, Any]:
        """What this round starts from: the newest checkpoint, or the first weights. Raises RestoreError."""
        fresh = {
            **self._base.load_checkpoint(),  # It keeps what it needs to write weights.
            **self._recipe, training.OPT_KEY: None, training.EPOCHS_KEY: 0, training.DATALOADER_KEY: None,
        }  # fmt: skip
        shards = self._checkpoints.shards()
        return fresh | assemble_state(shards)[0] if shards else fresh

    def save_checkpoint(
        self, state_dict: dict[str, Any], epoch: int, intermediate_checkpoint: bool = False, **settings: Any
    ) -> None:
        """Write the weights, and stage the state as of this epoch; after the last one wait until it is committed.

        Raises StateError for an optimizer whose parameters cannot be named; LinkError, StoreError.
        """
        model, optimizer = state_dict[training.MODEL_KEY], state_dict.get(training.OPT_KEY)
        if optimizer is not None and dist.is_initialized():
            optimizer = _by_name(optimizer, list(model))
        session = self._checkpoints.session
        weights = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in model.items()
        }
        if session.context.rank == 0:
            self._base.save_checkpoint({training.MODEL_KEY: weights}, epoch=epoch)
        state = {
            **self._recipe, training.MODEL_KEY: model, training.OPT_KEY: optimizer, training.EPOCHS_KEY: epoch + 1,
        }  # fmt: skip
        steps = [max(session.iteration, epoch + 1)]
        if dist.is_initialized():
            dist.broadcast_object_list(steps)  # Rank 0 logs, so it knows them.
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(state, self._checkpoints)
        self._checkpointer.save(steps[0], state)
        session.iteration = steps[0]
        if not intermediate_checkpoint:
            self._checkpointer.finish(state)


def _by_name(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """An optimizer's state by the names of parameters, as the recipe loads it. Raises StateError."""
    groups = state.get("param_groups", ())
    numbers = [number for group in groups for number in group["params"]]
    if sorted(numbers) != list(range(len(names))):
        raise StateError(
            f"optimizer: it has {len(numbers)} parameters, the model's state {len(names)} tensors; leave "
            "optimizer_in_bwd out, and use a model without buffers in its state"
        )
    return {
        "state": {names[number]: values for number, values in state["state"].items()},
        "param_groups": [{**group, "params": [names[number] for number in group["params"]]} for group in groups],
    }


class MetricLogger:
    """A recipe's `metric_logger`: the job's telemetry."""

    def __init__(self) -> None:
        self._session = current_or_first()
        self._session.loop = None

    def log_config(self, config: object) -> None:
        """No-op: the config is the script's."""

    def log(self, name: str, data: Any, step: int) -> None:
        """Send one figure as of that step."""
        self.log_dict({name: data}, step)

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        """Send an optimizer step's figures."""
        self._session.iteration = step
        self._session.beacon("step")
        self._session.send({name: float(value) for name, value in payload.items()})

    def close(self) -> None:
        """No-op: nothing is held back."""
