"""Walking through a state again: the second walk through the same tensors only looks whether they are the same.

A save of 20,000 small tensors would spend more time on their names than on their bytes. What a walk remembers of each
tensor is where its memory is, its shape, strides and type, never the tensor itself: the state alone keeps that alive.
Whatever differs, anywhere, and all is walked as if for the first time.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import msgspec
import torch

MANY = 16
"""Tensors of a dict from which on it is looked at as one."""
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_type_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


class ChangedError(Exception):
    """The state is not what the walk before found."""


@dataclass
class Group:
    """A dict of tensors, or a dict of dicts of tensors such as an optimizer has."""

    keys: list[Any]
    marks: tuple[list[Any], ...]
    """What each tensor was."""
    places: dict[str, str]
    """Key path -> name, in the order of the tensors."""
    first: list[bool]
    """Is it the one that its name is of?"""
    names: list[str]
    """Of those that are."""
    json: msgspec.Raw
    """What stands for the dict in the JSON part."""


@dataclass
class Walk:
    """What walks found. One that is `fresh` finds anew, any other compares and raises ChangedError."""

    fresh: bool = True
    groups: dict[str, Group] = field(default_factory=dict)
    """By key path."""
    others: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    """Of tensors outside groups, by key path: what each was, and its name."""
    places: dict[str, str] = field(default_factory=dict)
    """Every key path at which a tensor stands -> its name, once all has been walked."""
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def name(self, path: str, tensor: torch.Tensor) -> str:
        """Of the tensor at that path: the first path at which it stands."""
        seen = mark(tensor)
        if self.fresh:
            name = self._names.setdefault(seen, path) if tensor.numel() else path
            self.others[path] = seen, name
            return name
        known = self.others.get(path)
        if known is None or known[0] != seen:
            raise ChangedError
        return known[1]

    def again(self, path: str, value: dict[Any, Any]) -> tuple[Group, list[torch.Tensor]] | None:
        """The group at that path with its tensors of today; None: there is none."""
        known = self.groups.get(path)
        if known is None:
            return None
        found = _listed(value)
        if found is None or found[0] != known.keys or marks(found[1]) != known.marks:
            raise ChangedError
        return known, found[1]

    def remember(self, path: str, value: dict[Any, Any], encoded: Any, places: dict[str, str]) -> Any:
        """Look at the dict that stands there as one from now on, if it is of tensors; `places` are theirs. Returns
        what stands for it in the JSON part."""
        found = _listed(value)
        if found is None or len(found[1]) != len(places):
            return encoded
        for inner in places:
            self.others.pop(inner, None)
        within = f"{path}." if path else ""
        for inner in [inner for inner in self.groups if inner.startswith(within)]:
            del self.groups[inner]
        first = [place == name for place, name in places.items()]
        names = list(compress(places, first))
        text = msgspec.Raw(msgspec.json.encode(encoded))
        self.groups[path] = Group(found[0], marks(found[1]), places, first, names, text)
        return text

    def ended(self, groups: int, places: dict[str, str]) -> dict[str, str]:
        """All has been walked, and so many groups were there, and at these places tensors outside groups (of a fresh
        walk: all tensors). Returns the places of all."""
        if self.fresh:
            self.places = places
        elif (groups, len(places)) != (len(self.groups), len(self.others)):
            raise ChangedError
        self.fresh = False
        self._names.clear()
        return self.places


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected: the shapes and names of 20,000 tensors, soon gone, set off collections of everything
    that lives in a training, which take longer than the copy of those tensors."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def mark(tensor: torch.Tensor) -> tuple[Any, ...]:
    """By what it is known again: two tensors with the same mark are the same memory seen alike."""
    seen = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
    return (*seen, tensor.is_conj(), tensor.is_neg())


def marks(tensors: list[torch.Tensor]) -> tuple[list[Any], ...]:
    """The same of many at once; an address is in one device only. (Whoever copies knows complex ones by their type.)"""
    return (
        list(map(torch.Tensor.data_ptr, tensors)),
        list(map(_shape_of, tensors)),
        list(map(torch.Tensor.stride, tensors)),
        list(map(_type_of, tensors)),
        list(map(torch.Tensor.is_neg, tensors)),
    )


def chosen(group: Group, tensors: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """By name, each once."""
    return dict(zip(group.names, compress(tensors, group.first), strict=True))


def _listed(value: dict[Any, Any]) -> tuple[list[Any], list[torch.Tensor]] | None:
    """Keys and tensors of a dict of plain tensors, or of dicts of them; None for any other."""
    kinds = set(map(type, value.values()))
    if kinds and kinds <= _PLAIN:
        return list(value), list(value.values())
    if kinds != {dict}:
        return None
    tensors = list(chain.from_iterable(inner.values() for inner in value.values()))
    if not set(map(type, tensors)) <= _PLAIN:
        return None
    return [list(value), list(map(list, value.values()))], tensors
