"""Fast repeated traversal of a state: later traversals only check that the tensors are the same.

A save of 20,000 small tensors would spend more time on their names than on their bytes. The cache holds the address,
shape, strides and type of each tensor, never the tensor itself: only the state keeps tensors alive. torch's guards,
made for compiled code, compare all tensors in one call; checking each from Python took a fifth of the time of the copy.

Any difference, anywhere, leads to a full traversal.
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
"""A dict with at least this many tensors is treated as a group."""
_BATCH = 1024
"""Tensors that torch's guards check in one call. The guards of more do not fit a core's cache."""


class ChangedError(Exception):
    """The state differs from the cached traversal."""


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
    """The address of each tensor's memory."""
    guards: list[TensorGuards]
    """Guards of the tensors with `is_first`, in batches of `_BATCH`: shape, strides, type, device, conjugated,
    negated."""
    duplicates: dict[int, tuple[Any, ...]]
    """The fingerprints of all other tensors, by number."""
    name_by_path: dict[str, str]
    """Key path -> name, in the order of the tensors."""
    is_first: list[bool]
    """Is this the tensor's first path, which is its name?"""
    names: list[str]
    """Names of those with `is_first`."""
    json: msgspec.Raw
    """The dict's JSON."""

    def match(self, dict_tensors: "_DictTensors") -> NamedTensors | None:
        """The tensors with `is_first`, or None if any tensor differs. Requires as many tensors as before."""
        tensors, live = dict_tensors.tensors, dict_tensors.live
        if _addresses(tensors) != self.addresses or any(
            fingerprint(tensors[n]) != duplicate_fingerprint for n, duplicate_fingerprint in self.duplicates.items()
        ):
            return None
        if self.duplicates:
            tensors, live = (list(compress(some, self.is_first)) for some in (tensors, live))
        checks = zip(self.guards, _split_batches(tensors), strict=True)
        return NamedTensors(self.names, tensors, live) if all(guards.check(*some) for guards, some in checks) else None


@dataclass
class TraversalCache:
    """The results of a traversal. While `fresh` it records; later it compares and raises ChangedError."""

    fresh: bool = True
    groups: dict[str, Group] = field(default_factory=dict)
    """By key path."""
    lone_tensors: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    """Key path -> fingerprint and name of each tensor outside groups."""
    name_by_path: dict[str, str] = field(default_factory=dict)
    """Every key path of a tensor -> the tensor's name, once the traversal is complete."""
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def name_tensor(self, path: str, tensor: torch.Tensor) -> str:
        """The name of the tensor at that path: its first path."""
        tensor_fingerprint = fingerprint(tensor)
        if self.fresh:
            name = self._names.setdefault(tensor_fingerprint, path) if tensor.numel() else path
            self.lone_tensors[path] = tensor_fingerprint, name
            return name
        tensor_entry = self.lone_tensors.get(path)
        if tensor_entry is None or tensor_entry[0] != tensor_fingerprint:
            raise ChangedError
        return tensor_entry[1]

    def match_group(self, path: str, value: dict[Any, Any]) -> tuple[Group, NamedTensors] | None:
        """The group at that path with its current tensors; None if there is none. Raises ChangedError."""
        group = self.groups.get(path)
        if group is None:
            return None
        dict_tensors = _list_tensors(value)
        firsts = group.match(dict_tensors) if dict_tensors is not None and dict_tensors.keys == group.keys else None
        if firsts is None:
            raise ChangedError
        return group, firsts

    def remember(self, path: str, value: dict[Any, Any], json_value: Any, name_by_path: dict[str, str]) -> Any:
        """Record the dict at `path` as a group if it holds only tensors, which `name_by_path` names. Returns its
        JSON."""
        dict_tensors = _list_tensors(value)
        if dict_tensors is None or len(dict_tensors.tensors) != len(name_by_path):
            return json_value
        for inner in name_by_path:
            self.lone_tensors.pop(inner, None)
        within = f"{path}." if path else ""
        for inner in [inner for inner in self.groups if inner.startswith(within)]:
            del self.groups[inner]
        first = [inner == name for inner, name in name_by_path.items()]
        names = list(compress(name_by_path, first))
        text = msgspec.Raw(msgspec.json.encode(json_value))
        batches = _split_batches(list(compress(dict_tensors.tensors, first)))
        guards = [TensorGuards(*some, dynamic_dims_sizes=None, dynamic_dims_strides=None) for some in batches]
        duplicates = {
            number: fingerprint(dict_tensors.tensors[number]) for number in compress(count(), map(not_, first))
        }
        self.groups[path] = Group(
            dict_tensors.keys, _addresses(dict_tensors.tensors), guards, duplicates, name_by_path, first, names, text
        )
        return text

    def finish(self, groups: int, name_by_path: dict[str, str]) -> dict[str, str]:
        """End the traversal, which met that many groups and these tensors outside groups (when fresh: all tensors).
        Returns `name_by_path`. Raises ChangedError if some were not met."""
        if self.fresh:
            self.name_by_path = name_by_path
        elif (groups, len(name_by_path)) != (len(self.groups), len(self.lone_tensors)):
            raise ChangedError
        self.fresh = False
        self._names.clear()
        return self.name_by_path


@contextmanager
def pause_gc() -> Iterator[None]:
    """Disable garbage collection. The shapes and names of 20,000 tensors would trigger full collections of the training
    process, which take longer than the copy."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def fingerprint(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Identifies a tensor: equal fingerprints mean the same memory viewed in the same way."""
    tensor_fingerprint = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
    return (*tensor_fingerprint, tensor.is_conj(), tensor.is_neg())


def _addresses(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _split_batches(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [tensors[start : start + _BATCH] for start in range(0, len(tensors), _BATCH)]


class _DictTensors(NamedTuple):
    """The tensors of a dict, or of a dict of dicts."""

    keys: list[Any]
    """Of all dicts, and the types if some tensors are sharded."""
    tensors: list[torch.Tensor]
    live: list[torch.Tensor]
    """See `NamedTensors`."""


def _list_tensors(value: dict[Any, Any]) -> _DictTensors | None:
    """The tensors of the dict; None if it holds anything else."""
    keys, live = list(value), list(value.values())
    if live and type(live[0]) is dict and set(map(type, live)) == {dict}:
        keys = [keys, [list(inner) for inner in live]]
        live = list(chain.from_iterable(inner.values() for inner in live))
    tensors = local_parts(live)
    if tensors is None:
        return None
    return _DictTensors(keys if tensors is live else [keys, [type(tensor) for tensor in live]], tensors, live)
