"""How a module or optimizer is used besides its values: no checkpoint has that, and a round leaves it as it was when it
ended."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Trained = torch.nn.Module | torch.optim.Optimizer | torch.amp.GradScaler

_HOOKS = "_hooks"
"""So end the names of the attributes that have them (torch.nn.Module, torch.optim.Optimizer)."""
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class AsBuilt:
    """The modes, frozen parameters and hooks of a module; the settings (`lr`...) and hooks of an optimizer; a scaler
    of gradients as it is between two iterations.

    A round may end within an evaluation, or between `unscale_` and `update`, and what it adds, the next one adds again.
    """

    def __init__(self, part: Trained) -> None:
        self._part = part
        if isinstance(part, torch.amp.GradScaler):
            return
        self._hooks = [(hooks, dict(hooks)) for hooks in _hooks(part)]
        if isinstance(part, torch.optim.Optimizer):
            self._settings = [_settings(group) for group in part.param_groups]
        else:
            self._full_hooks = [(module, module._is_full_backward_hook) for module in part.modules()]
            self._modes = [(module, module.training) for module in part.modules()]
            self._trained = [(parameter, parameter.requires_grad) for parameter in part.parameters()]

    def put_back(self) -> None:
        """Make it so again, without gradients."""
        part = self._part
        if isinstance(part, torch.amp.GradScaler):
            if part.is_enabled():
                part._per_optimizer_states.clear()
            return
        part.zero_grad(set_to_none=True)
        at_first = {id(hooks): content for hooks, content in self._hooks}
        for hooks in _hooks(part):
            if hooks != (content := at_first.get(id(hooks), {})):
                hooks.clear()
                hooks.update(content)
        if isinstance(part, torch.optim.Optimizer):
            del part.param_groups[len(self._settings) :]
            for group, settings in zip(part.param_groups, self._settings, strict=True):
                group.update(copy.deepcopy(settings))
            return
        # What is compiled for a module looks for assignments: no equal ones.
        for module, training in self._modes:
            if module.training != training:
                module.training = training
        for module, is_full in self._full_hooks:
            if module._is_full_backward_hook != is_full:
                module._is_full_backward_hook = is_full
        for parameter, requires_grad in self._trained:
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({name: value for name, value in group.items() if name != "params"})


def _hooks(part: torch.nn.Module | torch.optim.Optimizer) -> Iterator[dict[int, Any]]:
    """Its dictionaries of hooks, also those of its modules and parameters."""
    owners = [part] if isinstance(part, torch.optim.Optimizer) else list(part.modules())
    for owner in owners:
        yield from (value for name, value in vars(owner).items() if name.endswith(_HOOKS) and isinstance(value, dict))
    if isinstance(part, torch.nn.Module):
        for parameter in part.parameters():
            yield from (hooks for name in _TENSOR_HOOKS if (hooks := getattr(parameter, name)) is not None)
