"""Walking through a state again: the second walk through the same tensors only looks whether they are the same.

A save of 20,000 small tensors would spend more time on their names than on their bytes. What a walk remembers of each
tensor is where its memory is, its shape, strides and type, never the tensor itself: the state alone keeps that alive.
torch's own guards of compiled code compare these of all tensors in one call; a look at each from Python took as long as
a fifth of the copy.
Whatever differs, anywhere, and all is walked as if for the first time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, compress, count
from operator import not_
from typing import Any, NamedTuple

import msgspec
import torch
from torch._C._dynamo.guards import TensorGuards  # pyright: ignore[reportMissingModuleSource]

from everstep.runtime.checkpoint.state.parts import local_parts

MIN_GROUP = 16
"""Tensors of a dict from which on it is looked at as one."""
_BATCH = 1024
"""Tensors that torch's guards look at in one call; what they note of more does not fit a core's cache."""


class ChangedError(Exception):
    """The state is not what the walk before found."""


class NamedTensors(NamedTuple):
    """Tensors of a state, each once."""

    names: list[str]
    tensors: list[torch.Tensor]
    """This rank's part of each."""
    live: list[torch.Tensor]
    """As the state has them: a DTensor is whole here."""


@dataclass
class Group:
    """A dict of tensors, or a dict of dicts of tensors such as an optimizer has."""

    keys: list[Any]
    addresses: list[int]
    """Where each tensor's memory was."""
    guards: list[TensorGuards]
    """What else those were that are `first`, `_AT_ONCE` by `_AT_ONCE`: shape, strides, type, device; conjugated,
    negated."""
    duplicates: dict[int, tuple[Any, ...]]
    """What the others were, by their number."""
    name_by_path: dict[str, str]
    """Key path -> name, in the order of the tensors."""
    is_first: list[bool]
    """Is it the one that its name is of?"""
    names: list[str]
    """Of those that are."""
    json: msgspec.Raw
    """What stands for the dict in the JSON part."""

    def match(self, listed: "_DictTensors") -> NamedTensors | None:
        """The ones that the names are of, if these, as many as before, are what the tensors were."""
        tensors, live = listed.tensors, listed.live
        if _addresses(tensors) != self.addresses or any(
            fingerprint(tensors[n]) != seen for n, seen in self.duplicates.items()
        ):
            return None
        if self.duplicates:
            tensors, live = (list(compress(some, self.is_first)) for some in (tensors, live))
        checks = zip(self.guards, _split_batches(tensors), strict=True)
        return NamedTensors(self.names, tensors, live) if all(guards.check(*some) for guards, some in checks) else None


@dataclass
class TraversalCache:
    """What walks found. One that is `fresh` finds anew, any other compares and raises ChangedError."""

    fresh: bool = True
    groups: dict[str, Group] = field(default_factory=dict)
    """By key path."""
    lone_tensors: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    """Of tensors outside groups, by key path: what each was, and its name."""
    name_by_path: dict[str, str] = field(default_factory=dict)
    """Every key path at which a tensor stands -> its name, once all has been walked."""
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def name_tensor(self, path: str, tensor: torch.Tensor) -> str:
        """Of the tensor at that path: the first path at which it stands."""
        seen = fingerprint(tensor)
        if self.fresh:
            name = self._names.setdefault(seen, path) if tensor.numel() else path
            self.lone_tensors[path] = seen, name
            return name
        known = self.lone_tensors.get(path)
        if known is None or known[0] != seen:
            raise ChangedError
        return known[1]

    def match_group(self, path: str, value: dict[Any, Any]) -> tuple[Group, NamedTensors] | None:
        """The group at that path with its tensors of today; None: there is none."""
        known = self.groups.get(path)
        if known is None:
            return None
        listed = _list_tensors(value)
        firsts = known.match(listed) if listed is not None and listed.keys == known.keys else None
        if firsts is None:
            raise ChangedError
        return known, firsts

    def remember(self, path: str, value: dict[Any, Any], encoded: Any, places: dict[str, str]) -> Any:
        """Look at the dict that stands there as one from now on, if it is of tensors; `places` are theirs. Returns
        what stands for it in the JSON part."""
        listed = _list_tensors(value)
        if listed is None or len(listed.tensors) != len(places):
            return encoded
        for inner in places:
            self.lone_tensors.pop(inner, None)
        within = f"{path}." if path else ""
        for inner in [inner for inner in self.groups if inner.startswith(within)]:
            del self.groups[inner]
        first = [place == name for place, name in places.items()]
        names = list(compress(places, first))
        text = msgspec.Raw(msgspec.json.encode(encoded))
        batches = _split_batches(list(compress(listed.tensors, first)))
        guards = [TensorGuards(*some, dynamic_dims_sizes=None, dynamic_dims_strides=None) for some in batches]
        again = {number: fingerprint(listed.tensors[number]) for number in compress(count(), map(not_, first))}
        self.groups[path] = Group(listed.keys, _addresses(listed.tensors), guards, again, places, first, names, text)
        return text

    def finish(self, groups: int, places: dict[str, str]) -> dict[str, str]:
        """All has been walked, and so many groups were there, and at these places tensors outside groups (of a fresh
        walk: all tensors). Returns the places of all."""
        if self.fresh:
            self.name_by_path = places
        elif (groups, len(places)) != (len(self.groups), len(self.lone_tensors)):
            raise ChangedError
        self.fresh = False
        self._names.clear()
        return self.name_by_path


@contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage is collected: the shapes and names of 20,000 tensors, soon gone, set off collections of everything
    that lives in a training, which take longer than the copy of those tensors."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def fingerprint(tensor: torch.Tensor) -> tuple[Any, ...]:
    """By what it is known again: two tensors with the same mark are the same memory seen alike."""
    seen = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
    return (*seen, tensor.is_conj(), tensor.is_neg())


def _addresses(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _split_batches(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [tensors[start : start + _BATCH] for start in range(0, len(tensors), _BATCH)]


class _DictTensors(NamedTuple):
    """What is in a dict of tensors, or of dicts of them."""

    keys: list[Any]
    """Of all dicts, and which tensors are sharded ones."""
    tensors: list[torch.Tensor]
    live: list[torch.Tensor]
    """See `Found`."""


def _list_tensors(value: dict[Any, Any]) -> _DictTensors | None:
    """None for any other dict."""
    keys, live = list(value), list(value.values())
    if live and type(live[0]) is dict and set(map(type, live)) == {dict}:
        keys = [keys, [list(inner) for inner in live]]
        live = list(chain.from_iterable(inner.values() for inner in live))
    tensors = local_parts(live)
    if tensors is None:
        return None
    return _DictTensors(keys if tensors is live else [keys, [type(one) for one in live]], tensors, live)
