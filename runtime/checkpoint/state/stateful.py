"""What a user's state is made of, one kind an adaptor: modules, optimizers, anything with state_dict.

Only here does staging know what a module or an optimizer is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.runtime.checkpoint.errors import StateError


@runtime_checkable
class Stateful(Protocol):
    """Anything that can tell its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of tensors, numbers, strings."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take a state of the same form."""
        ...


def unwrap(value: Any) -> Any:
    """The module inside DistributedDataParallel: a checkpoint's names do not depend on how it was trained."""
    return value.module if isinstance(value, DistributedDataParallel) else value


def load_state(target: Stateful, merged: dict[str, Any]) -> None:
    """Give `target` its state. Its own tensors hold the restored values already, and `merged` names those tensors."""
    target.load_state_dict(merged)


_ZERO_INITIALIZED = ("Adam", "AdamW", "Adamax", "RMSprop", "Adadelta", "SGD")
"""Optimizers of torch whose state before the first step is all zeros."""


def prepare_optimizer(optimizer: torch.optim.Optimizer, path: str) -> None:
    """Make the state exist before the first step, so that its size is known and it can be restored in place.

    One step of stand-ins without elements tells what the optimizer keeps for each parameter: zeros of the parameter's
    form where the stand-in's is kept in its form. Weights and gradients are not touched. Raises StateError for an
    optimizer that starts otherwise.
    """
    wanted = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
    if optimizer.state or not any(wanted):
        return
    _check_starts_from_zero(optimizer, path)
    groups = [[(p, _stand_in(p)) for p in parameters] for parameters in wanted]
    with _swap_parameters(optimizer, [[one for _, one in pairs] for pairs in groups]):
        type(optimizer).step(optimizer)
    for parameter, stand_in in (pair for pairs in groups for pair in pairs):
        if (kept := optimizer.state.pop(stand_in, None)) is not None:
            optimizer.state[parameter] = {name: _zero_like(value, stand_in, parameter) for name, value in kept.items()}


def _stand_in(parameter: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(0, dtype=parameter.dtype, device=parameter.device, requires_grad=True)
    made.grad = torch.zeros_like(made)
    return made


@contextmanager
def _swap_parameters(optimizer: torch.optim.Optimizer, parameters: list[list[torch.Tensor]]) -> Iterator[None]:
    """The optimizer's groups have these parameters."""
    own = [group["params"] for group in optimizer.param_groups]
    try:
        for group, given in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = given
        yield
    finally:
        for group, given in zip(optimizer.param_groups, own, strict=True):
            group["params"] = given


def _zero_like(value: Any, stand_in: torch.Tensor, parameter: torch.Tensor) -> Any:
    """What a state is before the first step, where it is `value` after the stand-in's."""
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
