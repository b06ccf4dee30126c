"""What a worker keeps from round to round: models, compiled code, data readers."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.as_built import AsBuilt, Trained

P = ParamSpec("P")
T = TypeVar("T")
_PLAIN = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True)
class _Entry:
    value: Any
    plain: str
    """The plain ones among the arguments that it was built with."""
    random: torch.Tensor
    """torch's random state when it was built."""
    as_built: Sequence[AsBuilt]
    """Of its modules, optimizers and scalers of gradients."""


class KeptValues:
    """The values that one process has built, by builder and by the number of its call in the round.

    Invariant: in each round, a value's gradients, modes and hooks are those of a new one.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._calls = Counter[str]()

    def begin_round(self, restores: bool) -> None:
        """Begin a round. If it restores no state, drop everything: it may have been trained."""
        self._calls.clear()
        if not restores:
            self._entries.clear()

    def keep(self, build: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`build(*args, **kwargs)`, or what an earlier round's call has built, as new but for its values.

        It is built again if a number or text among the arguments is another, or if the round has made it part of its
        process group, as `fully_shard` does in place. torch's random state is afterwards as `build` left it, so that
        old and new processes go on alike. Raises TypeError if `build` itself returns what belongs to a group.
        """
        name = f"{getattr(build, '__module__', '')}.{getattr(build, '__qualname__', type(build).__name__)}"
        self._calls[name] += 1
        key, plain = (name, self._calls[name]), _plain(args, kwargs)
        entry = self._entries.get(key)
        if entry is None or entry.plain != plain or _group_member(entry.value):
            self._entries.pop(key, None)  # Free it first: there may not be room for two.
            value = build(*args, **kwargs)
            if member := _group_member(value):
                raise TypeError(f"keep({name}): {member}")
            as_built = tuple(AsBuilt(part) for part in _trained_parts(value))
            self._entries[key] = entry = _Entry(value, plain, torch.get_rng_state(), as_built)
        else:
            for part in entry.as_built:
                part.put_back()
            torch.set_rng_state(entry.random)
        return entry.value


def _plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return repr([(name, value) for name, value in [*enumerate(args), *kwargs.items()] if isinstance(value, _PLAIN)])


def _parts(value: Any) -> Iterable[Any]:
    """The value, or what is in it if it is a list, tuple, dict or another object with attributes."""
    if isinstance(value, Trained):
        yield value
    elif isinstance(value, dict | list | tuple):
        for element in value.values() if isinstance(value, dict) else value:
            yield from _parts(element)
    else:
        yield from (part for part in getattr(value, "__dict__", {}).values() if isinstance(part, Trained))


def _trained_parts(value: Any) -> Iterable[Trained]:
    return (part for part in _parts(value) if isinstance(part, Trained))


def _group_member(value: Any) -> str:
    """What of it belongs to one round's process group, for people; empty: nothing."""
    for part in _parts(value):
        if isinstance(part, torch.nn.Module):
            if any(isinstance(module, DistributedDataParallel) for module in part.modules()):
                return "DistributedDataParallel belongs to one round; keep the model in it"
            if any(hasattr(parameter, "device_mesh") for parameter in part.parameters()):
                return "a sharded model belongs to one round; keep the model before it is sharded"
    return ""
