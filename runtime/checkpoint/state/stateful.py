"""Adapters for the objects in a user's state: modules, optimizers, anything with state_dict.

Only this module knows what a module or an optimizer is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.runtime.checkpoint.errors import StateError


@runtime_checkable
class Stateful(Protocol):
    """An object that can return its state and load it."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of tensors, numbers, strings."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load a state of the same form."""
        ...


def unwrap(value: Any) -> Any:
    """The module inside DistributedDataParallel. Names in a checkpoint must not depend on how the model was trained."""
    return value.module if isinstance(value, DistributedDataParallel) else value


def load_state(target: Stateful, merged_state: dict[str, Any]) -> None:
    """Load its state into `target`. Its tensors hold the restored values already, and `merged_state` refers to them."""
    target.load_state_dict(merged_state)


_ZERO_INITIALIZED = ("Adam", "AdamW", "Adamax", "RMSprop", "Adadelta", "SGD")
"""Optimizers of torch whose state before the first step is all zeros."""


def prepare_optimizer(optimizer: torch.optim.Optimizer, path: str) -> None:
    """Create the optimizer's state before its first step, so that its size is known and it can be restored in place.

    One step with empty stand-in parameters shows what the optimizer stores for each parameter. A stored tensor of the
    stand-in's shape becomes zeros of the parameter's shape. Weights and gradients are not touched, and no hook of torch
    is called: it is no step of the training.

    Raises StateError for an optimizer whose state does not start from zeros.
    """
    own_groups = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
    if optimizer.state or not any(own_groups):
        return
    _check_starts_from_zero(optimizer, path)
    groups = [[(p, _stand_in(p)) for p in parameters] for parameters in own_groups]
    stand_ins = [[stand_in for _, stand_in in pairs] for pairs in groups]
    with _swap_parameters(optimizer, stand_ins):
        step: Any = type(optimizer).step
        if getattr(step, "hooked", False):  # torch has wrapped it to call the hooks.
            step = step.__wrapped__
        step(optimizer)
    for parameter, stand_in in (pair for pairs in groups for pair in pairs):
        if (optimizer_entry := optimizer.state.pop(stand_in, None)) is not None:
            optimizer.state[parameter] = {
                name: _zero_like(value, stand_in, parameter) for name, value in optimizer_entry.items()
            }


def _stand_in(parameter: torch.Tensor) -> torch.Tensor:
    stand_in = torch.zeros(0, dtype=parameter.dtype, device=parameter.device, requires_grad=True)
    stand_in.grad = torch.zeros_like(stand_in)
    return stand_in


@contextmanager
def _swap_parameters(optimizer: torch.optim.Optimizer, parameters: list[list[torch.Tensor]]) -> Iterator[None]:
    """The optimizer's groups have these parameters within the block."""
    own = [group["params"] for group in optimizer.param_groups]
    try:
        for group, saved_parameters in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = saved_parameters
        yield
    finally:
        for group, saved_parameters in zip(optimizer.param_groups, own, strict=True):
            group["params"] = saved_parameters


def _zero_like(value: Any, stand_in: torch.Tensor, parameter: torch.Tensor) -> Any:
    """The initial value of a state entry that is `value` after the stand-in's step."""
    if isinstance(value, torch.Tensor):
        like = parameter.detach() if value.shape == stand_in.shape else value
        return torch.zeros_like(like, dtype=value.dtype, memory_format=torch.preserve_format)
    return type(value)(0) if isinstance(value, int | float) else value


def _check_starts_from_zero(optimizer: torch.optim.Optimizer, path: str) -> None:
    name = type(optimizer).__name__
    dampened = name == "SGD" and any(group["dampening"] for group in optimizer.param_groups)
    if not type(optimizer).__module__.startswith("torch.optim") or name not in _ZERO_INITIALIZED or dampened:
        raise StateError(
            f"{path}: {name}{' with dampening' if dampened else ''} has no state before its first step and does not "
            f"start from zeros; take one step before Checkpointer(state), or use one of {', '.join(_ZERO_INITIALIZED)}"
        )
