"""What a user's state is made of, one kind an adaptor: modules, optimizers, anything with state_dict.

Only here does staging know what a module or an optimizer is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.parallel import DistributedDataParallel

from runtime.checkpoint.errors import StateError


@runtime_checkable
class Stateful(Protocol):
    """Anything that can tell its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of tensors, numbers, strings."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take a state of the same form."""
        ...


def unwrapped(value: Any) -> Any:
    """The module inside DistributedDataParallel: a checkpoint's names do not depend on how it was trained."""
    return value.module if isinstance(value, DistributedDataParallel) else value


def take_back(target: Stateful, merged: dict[str, Any]) -> None:
    """Give `target` its state. Its own tensors hold the restored values already, and `merged` names those tensors."""
    target.load_state_dict(merged)


_FROM_ZERO = ("Adam", "AdamW", "Adamax", "RMSprop", "Adadelta", "SGD")
"""Optimizers of torch whose state before the first step is all zeros."""


def prepare_optimizer(optimizer: torch.optim.Optimizer, path: str) -> None:
    """Make the state exist before the first step, so that its size is known and it can be restored in place.

    One step with lr 0 and zero gradients makes the tensors; then they are set to zero, as a fresh optimizer starts.
    Weights and gradients are put back bit for bit. Raises StateError for an optimizer that starts otherwise.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if optimizer.state or not parameters:
        return
    _check_starts_from_zero(optimizer, path)
    weights = [p.detach().clone() for p in parameters]
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    with _without_lr(optimizer):
        type(optimizer).step(optimizer)
    with torch.no_grad():
        for parameter, weight, gradient in zip(parameters, weights, gradients, strict=True):
            parameter.copy_(weight)
            parameter.grad = gradient
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    value.zero_()
                elif isinstance(value, int | float):
                    state[name] = type(value)(0)


def _check_starts_from_zero(optimizer: torch.optim.Optimizer, path: str) -> None:
    name = type(optimizer).__name__
    dampened = name == "SGD" and any(group["dampening"] for group in optimizer.param_groups)
    if not type(optimizer).__module__.startswith("torch.optim") or name not in _FROM_ZERO or dampened:
        raise StateError(
            f"{path}: {name}{' with dampening' if dampened else ''} has no state before its first step and does not "
            f"start from zeros; take one step before Checkpointer(state), or use one of {', '.join(_FROM_ZERO)}"
        )


@contextmanager
def _without_lr(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
