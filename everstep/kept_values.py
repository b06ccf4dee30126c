"""What a worker keeps from round to round: models, compiled code, data readers."""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.as_built import AsBuilt, Trained
from everstep.seeding import GeneratorsState, generators_state, set_generators_state

P = ParamSpec("P")
T = TypeVar("T")
_PLAIN = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True)
class _Entry:
    value: Any
    plain: str
    """The plain ones among the arguments that it was built with."""
    random: GeneratorsState
    """When it was built."""
    as_built: Sequence[AsBuilt]
    """Of its modules, optimizers and scalers of gradients."""
    made_of: Sequence[Trained]
    """Those among the arguments."""


class KeptValues:
    """The values that one process has built, by builder and by the number of its call in the round.

    Invariant: in each round, a value's gradients, modes and hooks are those of a new one.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._calls = Counter[str]()
        self._tensors = set[int]()
        """The ids of the parameters that are in this round's values so far."""
        self._has_rebuilt = False
        """Was a value of an earlier round built again in this one?"""

    def begin_round(self, restores: bool) -> None:
        """Begin a round. If it restores no state, drop everything: it may have been trained."""
        self._calls.clear()
        self._tensors.clear()
        self._has_rebuilt = False
        if not restores:
            self._entries.clear()

    def end_round(self) -> None:
        """Drop what would be built again, as the round has made it part of its group, so that it can be collected."""
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if not _group_member(entry.value) and self._has_parameters_of(entry.value)
        }

    def keep(self, build: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`build(*args, **kwargs)`, or what an earlier round's call has built, as new but for its values.

        It is built again if a number or text among the arguments is another, if the round has made it part of its
        process group, as `fully_shard` does in place, or if it was made of a model that is another one now. The random
        generators are afterwards as `build` left them, so that old and new processes go on alike. Raises TypeError if
        `build` itself returns what belongs to a group.
        """
        name = f"{getattr(build, '__module__', '')}.{getattr(build, '__qualname__', type(build).__name__)}"
        self._calls[name] += 1
        key, plain, made_of = (name, self._calls[name]), _plain(args, kwargs), _trained_arguments(args, kwargs)
        entry = self._entries.get(key)
        if entry is not None and (
            entry.plain != plain
            or _group_member(entry.value)
            or not _are_same(entry.made_of, made_of)
            or (self._has_rebuilt and getattr(build, "__closure__", None))
            or not self._has_parameters_of(entry.value)
        ):
            del self._entries[key]
            entry, self._has_rebuilt = None, True  # It is free now: there may not be room for two.
        if entry is None:
            value = build(*args, **kwargs)
            if member := _group_member(value):
                raise TypeError(f"keep({name}): {member}")
            as_built = tuple(AsBuilt(part) for part in _trained_parts(value))
            self._entries[key] = entry = _Entry(value, plain, generators_state(), as_built, made_of)
        else:
            for part in entry.as_built:
                part.put_back()
            set_generators_state(entry.random)
        self._tensors |= set(map(id, _tensors(entry.value)))
        return entry.value

    def _has_parameters_of(self, value: Any) -> bool:
        """Are the parameters of its optimizers those of this round's values? Else they would train a model that nobody
        uses any more."""
        known = self._tensors | set(map(id, _tensors(value)))
        optimizers = [element for element in _elements(value) if isinstance(element, torch.optim.Optimizer)]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        return all(id(parameter) in known for group in groups for parameter in group["params"])


def _plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return repr([(name, value) for name, value in [*enumerate(args), *kwargs.items()] if isinstance(value, _PLAIN)])


def _elements(value: Any) -> Iterable[Any]:
    """The value, or what is in it if it is a list, tuple or dict."""
    if isinstance(value, dict | list | tuple):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _elements(element)
    else:
        yield value


def _parts(value: Any) -> Iterable[Any]:
    """The value, or what is in it if it is a list, tuple, dict or another object with attributes."""
    for element in _elements(value):
        if isinstance(element, Trained | torch.Tensor):
            yield element
        else:
            attributes = getattr(element, "__dict__", {}).values()
            yield from (part for part in attributes if isinstance(part, Trained | torch.Tensor))


def _trained_parts(value: Any) -> Iterable[Trained]:
    return (part for part in _parts(value) if isinstance(part, Trained))


def _trained_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Trained]:
    return [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Trained)]


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """The parameters of its modules, and the tensors in it that are in no module."""
    for part in _parts(value):
        if isinstance(part, torch.nn.Module):
            yield from part.parameters()
        elif isinstance(part, torch.Tensor):
            yield part


def _group_member(value: Any) -> str:
    """What of it belongs to one round's process group, for people; empty: nothing."""
    for part in _parts(value):
        if isinstance(part, torch.nn.Module):
            if any(isinstance(module, DistributedDataParallel) for module in part.modules()):
                return "DistributedDataParallel belongs to one round; keep the model in it"
            if any(hasattr(parameter, "device_mesh") for parameter in part.parameters()):
                return "a sharded model belongs to one round; keep the model before it is sharded"
    return ""
