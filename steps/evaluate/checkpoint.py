"""A checkpoint of steps/train/llama.py in the store: the weights, the model's config, the training's settings."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import NoSuchKey, StoreError, open_store
from everstep.steps.entry import StepError, disk_error_code

if TYPE_CHECKING:
    import torch
    from transformers.models.llama import LlamaForCausalLM

    from everstep.runtime.checkpoint.errors import RestoreError
    from everstep.runtime.checkpoint.stored.manifest import Commit


class CannotMeasureError(StepError):
    """The checkpoint cannot be measured. This is not an error after a user's own script: it need not leave a Llama."""


class NotALlamaError(CannotMeasureError):
    """A whole checkpoint, but without what `steps/train/llama.py` puts into its state."""


@dataclass(frozen=True)
class TrainedModel:
    """The result of the training."""

    weights: dict[str, "torch.Tensor"]
    """By name in the model's state_dict."""
    config: dict[str, Any]
    """The model's config.json."""
    settings: dict[str, Any]
    """The flags of the training script."""
    iteration: int

    def build(self) -> "LlamaForCausalLM":
        """The model with those weights. Raises StepError if the weights do not fit its config."""
        from transformers.models.llama import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**self.config))
        try:
            model.load_state_dict(self.weights)
        except RuntimeError as error:
            raise StepError(f"--checkpoint: its weights are not those of its config: {error}") from None
        return model


def read_manifest(uri: str) -> "Commit":
    """The checkpoint's manifest. Raises StepError if there is no committed checkpoint, or if parts are missing."""
    from everstep.runtime.checkpoint.errors import RestoreError
    from everstep.runtime.checkpoint.stored.manifest import read_commit

    if not uri:
        raise StepError("--checkpoint is empty: give the URI that everstep.steps.train printed")
    try:
        return read_commit(open_store(uri, read_only=True), "")
    except RestoreError as error:
        raise StepError(f"--checkpoint {uri}: {error}", _exit_code(error)) from None
    except NoSuchKey:
        mend = "give the URI that everstep.steps.train printed"
        raise StepError(f"--checkpoint {uri}: no committed checkpoint there (no manifest.json); {mend}") from None
    except StoreError as error:
        raise StepError(f"--checkpoint {error}", disk_error_code(error)) from None


def read(uri: str) -> TrainedModel:
    """Read and verify all shards. Raises StepError: damaged; NotALlamaError: not as our script writes it."""
    from everstep.runtime.checkpoint.errors import ApartError, RestoreError
    from everstep.runtime.checkpoint.stored.read_committed import read_committed

    commit = read_manifest(uri)
    try:
        state, iteration = read_committed(open_store(uri, read_only=True), "", commit)
    except ApartError as error:
        raise NotALlamaError(f"--checkpoint {uri}: {error}") from None
    except RestoreError as error:
        raise StepError(f"--checkpoint {uri}: {error}", _exit_code(error)) from None
    return trained_of(state, iteration, uri)


def _exit_code(error: "RestoreError") -> ExitCode:
    """A checkpoint that the store does not return now may be whole: another try may read it."""
    from everstep.runtime.protocol.holdings import Flaw

    return ExitCode.TRY_AGAIN if error.flaw is Flaw.UNREACHABLE else ExitCode.BAD_INPUT


def trained_of(state: dict[str, Any], iteration: int, uri: str) -> TrainedModel:
    """The training's result from that state, which is stored at `uri`. Raises NotALlamaError."""
    try:
        config = state["config"]
        return TrainedModel(state["model"], json.loads(config["model"]), json.loads(config["settings"]), iteration)
    except (KeyError, TypeError):
        mend = "checkpoint them as steps/train/llama.py does, or leave this step out"
        raise NotALlamaError(f"--checkpoint {uri}: no state `model` and `config` of a Llama in it; {mend}") from None
