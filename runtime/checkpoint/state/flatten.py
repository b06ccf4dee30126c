"""A user's state as a flat list of tensors and one JSON value, and back into the live objects.

Values that JSON lacks are written as an object with the key `$`: a tensor's name, a tuple, a dict whose keys are not
all strings, a float that is not finite.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import torch

from everstep.runtime.checkpoint.errors import StateError
from everstep.runtime.checkpoint.state.parts import TensorPart, is_distributed, is_sharded_kind, local_part, part_of
from everstep.runtime.checkpoint.state.stateful import Stateful, load_state, prepare_optimizer, unwrap
from everstep.runtime.checkpoint.state.traversal import MIN_GROUP, ChangedError, NamedTensors, TraversalCache

SIGN = "$"
_PREPARED_TYPES = (dict, torch.optim.Optimizer)
RESERVED = "__everstep_"


@dataclass
class FlatState:
    """A flattened state."""

    named_tensors: list[NamedTensors] = field(default_factory=list)
    """All tensors, in groups."""
    name_by_path: dict[str, str] = field(default_factory=dict)
    """Every key path of a tensor -> the tensor's name in `tensors`."""
    json: Any = None
    """All other values, ready for `json_bytes`."""
    traversal: TraversalCache = field(default_factory=TraversalCache)
    """Flat states of one traversal have the same tensors at the same paths."""

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's part of each tensor by key path, joined with '.'. A tensor with several paths is here once, under
        the first. Computed on demand: an unchanged state is staged and loaded without it."""
        return {
            name: tensor
            for group in self.named_tensors
            for name, tensor in zip(group.names, group.tensors, strict=True)
        }

    @cached_property
    def live(self) -> dict[str, torch.Tensor]:
        """The tensors as the state has them, where these differ from this rank's parts (DTensors)."""
        others = [group for group in self.named_tensors if group.live is not group.tensors]
        return {name: tensor for group in others for name, tensor in zip(group.names, group.live, strict=True)}

    def parts(self) -> dict[str, TensorPart]:
        """The part of the whole that this rank holds, for each sharded tensor by name."""
        return {name: part_of(tensor) for name, tensor in self.live.items() if is_sharded_kind(tensor)}

    def is_sharded(self) -> bool:
        """Does each rank hold a different part? The answer is the same on every rank."""
        return any(is_distributed(tensor) for tensor in self.live.values())

    def live_tensor(self, path: str) -> torch.Tensor:
        """The tensor at that key path as the state has it."""
        name = self.name_by_path[path]
        return self.live[name] if name in self.live else self.tensors[name]


class Flattener:
    """Flattens one state repeatedly; fast while its tensors are unchanged (see `traversal`)."""

    def __init__(self) -> None:
        self._walk = TraversalCache()

    def flatten(self, state: Any) -> FlatState:
        """See the function `flatten`. Raises StateError."""
        if not self._walk.fresh:
            with suppress(ChangedError):
                return _flatten(state, self._walk)
        self._walk = TraversalCache()
        return _flatten(state, self._walk)


def flatten(state: Any) -> FlatState:
    """The tensors and the JSON of `state`: dicts, lists, tuples, tensors, numbers, strings, None and objects with
    state_dict.

    Raises StateError with the key path of any other value.
    """
    return Flattener().flatten(state)


def _flatten(state: Any, traversal: TraversalCache) -> FlatState:
    tree = FlatState(traversal=traversal)
    unchanged_paths: set[str] = set()
    with torch.no_grad():
        tree.json = _encode(state, "", tree, unchanged_paths)
    tree.name_by_path = traversal.finish(len(unchanged_paths), tree.name_by_path)
    return tree


def _encode(value: Any, path: str, tree: FlatState, unchanged_paths: set[str]) -> Any:
    """The JSON of `value`. Adds the paths of unchanged groups to `unchanged_paths`."""
    value = unwrap(value)
    if isinstance(value, torch.Tensor):
        return {SIGN: "tensor", "name": _add_tensor(value, path, tree)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {SIGN: "float", "value": repr(value)}
    if isinstance(value, dict):
        return _encode_dict(value, path, tree, unchanged_paths)
    if isinstance(value, list | tuple):
        items = [_encode(item, _join(path, index), tree, unchanged_paths) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {SIGN: "tuple", "items": items}
    if isinstance(value, Stateful):
        return _encode(value.state_dict(), path, tree, unchanged_paths)
    raise StateError(
        f"{path or 'state'}: a {type(value).__name__} cannot be checkpointed; give tensors, numbers, strings, "
        "dicts and lists of them, or an object with state_dict and load_state_dict"
    )


def _encode_dict(value: dict[Any, Any], path: str, tree: FlatState, unchanged_paths: set[str]) -> Any:
    traversal = tree.traversal
    if group_match := traversal.match_group(path, value):
        unchanged_paths.add(path)
        group, tensor_group = group_match
        tree.named_tensors.append(tensor_group)
        return group.json
    before = len(tree.name_by_path)
    inner = {key: _encode(item, _join(path, key), tree, unchanged_paths) for key, item in value.items()}
    if all(isinstance(key, str) for key in inner) and SIGN not in inner:
        json_value = inner
    elif all(isinstance(key, str | int) and not isinstance(key, bool) for key in inner):
        json_value = {SIGN: "dict", "items": [[key, item] for key, item in inner.items()]}
    else:
        raise StateError(f"{path or 'state'}: a dict with keys that are neither strings nor integers")
    if traversal.fresh and len(tree.name_by_path) - before >= MIN_GROUP:
        return traversal.remember(path, value, json_value, dict(islice(tree.name_by_path.items(), before, None)))
    return json_value


def _add_tensor(live: torch.Tensor, path: str, tree: FlatState) -> str:
    tensor = local_part(live)
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise StateError(
            f"{path}: only dense tensors with data can be checkpointed, not {tensor.layout} on {tensor.device}"
        )
    if tensor.numel() and tensor.data_ptr() == tensor.storage_offset() * tensor.element_size():
        # Its memory begins at address 0. All such tensors of one shape would count as one.
        kind = type(tensor).__name__
        raise StateError(f"{path}: a {kind} without memory of its own cannot be checkpointed; give the tensors in it")
    if path in tree.name_by_path or path.startswith(RESERVED):
        raise StateError(f"{path}: two tensors of the state have this key path, or it begins with {RESERVED}")
    name = tree.traversal.name_tensor(path, tensor)
    tree.name_by_path[path] = name
    if name == path:
        tree.named_tensors.append(NamedTensors([name], [tensor.detach()], [live]))
    return name


def decode(value: Any, tensor: Callable[[str], Any]) -> Any:
    """The inverse of `_encode`. `tensor(name)` supplies each tensor."""
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get(SIGN):
        case None:
            return {key: decode(item, tensor) for key, item in value.items()}
        case "tensor":
            return tensor(value["name"])
        case "tuple":
            return tuple(decode(item, tensor) for item in value["items"])
        case "dict":
            return {key: decode(item, tensor) for key, item in value["items"]}
        case "float":
            return float(value["value"])
        case unknown:
            raise StateError(f"a checkpoint of a later Everstep: unknown sign {unknown!r}")


def name_by_path(value: Any, path: str = "", traversal: TraversalCache | None = None) -> dict[str, str]:
    """Key path -> tensor name of a JSON state, as in `FlatState.name_by_path`. A Raw in it is a group of
    `traversal`."""
    if isinstance(value, msgspec.Raw):
        assert traversal is not None
        return traversal.groups[path].name_by_path
    if isinstance(value, list):
        items: Any = enumerate(value)
    elif not isinstance(value, dict):
        return {}
    elif value.get(SIGN) == "tensor":
        return {path: value["name"]}
    elif value.get(SIGN) == "tuple":
        items = enumerate(value["items"])
    elif value.get(SIGN) == "dict":
        items = value["items"]
    else:
        items = value.items()
    names: dict[str, str] = {}
    for key, item in items:
        names.update(name_by_path(item, _join(path, key), traversal))
    return names


def tensor_names(value: Any) -> set[str]:
    """The names of all tensors in a JSON state. A Raw is skipped: its names are known. Raises ValueError, TypeError or
    LookupError if the JSON was not written by `_encode`."""
    if isinstance(value, list):
        return set().union(*map(tensor_names, value))
    if not isinstance(value, dict):
        return set()
    match value.get(SIGN):
        case None:
            return set().union(*map(tensor_names, value.values()))
        case "tensor" if isinstance(value["name"], str):
            return {value["name"]}
        case "tuple" if isinstance(value["items"], list):
            return tensor_names(value["items"])
        case "dict" if isinstance(value["items"], list):
            if not all(isinstance(key, str | int) for key, _ in value["items"]):
                raise TypeError("a key that is neither a string nor an integer")
            return set().union(*(tensor_names(item) for _, item in value["items"]))
        case "float" if isinstance(value["value"], str):
            float(value["value"])
            return set()
    raise ValueError(f"unknown sign {value[SIGN]!r}: damaged, or of a later Everstep")


def prepare_state(state: Any, path: str = "") -> None:
    """Create the state of optimizers that have none yet, so that its tensors and their sizes are known."""
    if isinstance(state, torch.optim.Optimizer):
        prepare_optimizer(state, path)
    elif isinstance(state, dict):
        for key, item in state.items():
            if isinstance(item, _PREPARED_TYPES):
                prepare_state(item, _join(path, key))


def restore_values(live: Any, saved_value: Any, tree: FlatState, path: str = "") -> Any:
    """Set every value of `live` that is not a tensor from the JSON `saved_value`.

    `tree` is the flat form of the whole state; its tensors hold the restored values already. An object whose
    `state_dict` creates new tensors each time receives these. A Raw in `saved_value` is text that equals that of
    `live`.

    Returns what replaces `live`: `live` itself if it could be changed in place.
    """
    inner = unwrap(live)
    if isinstance(inner, torch.Tensor) or (isinstance(inner, torch.nn.Module) and not _has_other_values(saved_value)):
        return live
    if isinstance(inner, Stateful):
        load_state(inner, _merge_live(saved_value, tree, path))
        return live
    if isinstance(inner, dict) and isinstance(saved_value, msgspec.Raw):
        return live
    if isinstance(inner, dict) and isinstance(saved_value, dict) and saved_value.get(SIGN) in (None, "dict"):
        for key, item in saved_value["items"] if SIGN in saved_value else saved_value.items():
            inner[key] = restore_values(inner.get(key), item, tree, _join(path, key))
        return live
    items = saved_value["items"] if isinstance(saved_value, dict) and saved_value.get(SIGN) == "tuple" else saved_value
    if isinstance(inner, list | tuple) and isinstance(items, list) and len(inner) == len(items):
        pairs = enumerate(zip(inner, items, strict=True))
        both = [restore_values(old, item, tree, _join(path, index)) for index, (old, item) in pairs]
        if isinstance(inner, tuple):
            return tuple(both)
        inner[:] = both
        return live
    return _merge_live(saved_value, tree, path)


def _merge_live(saved_value: Any, tree: FlatState, path: str) -> Any:
    """`saved_value`, which stands at `path`, with the live tensor at each of its paths."""
    return decode(_name_by_own_path(saved_value, path), tree.live_tensor)


def _name_by_own_path(value: Any, path: str) -> Any:
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if isinstance(value, list):
        return [_name_by_own_path(item, _join(path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict) or value.get(SIGN) == "float":
        return value
    match value.get(SIGN):
        case "tensor":
            return {SIGN: "tensor", "name": path}
        case "tuple":
            items = [_name_by_own_path(item, _join(path, index)) for index, item in enumerate(value["items"])]
            return {SIGN: "tuple", "items": items}
        case "dict":
            return {
                SIGN: "dict",
                "items": [[key, _name_by_own_path(item, _join(path, key))] for key, item in value["items"]],
            }
    return {key: _name_by_own_path(item, _join(path, key)) for key, item in value.items()}


def _has_other_values(value: Any) -> bool:
    """Does it hold any value that is not a tensor?"""
    if isinstance(value, msgspec.Raw):
        return False
    if isinstance(value, dict):
        return value.get(SIGN) != "tensor" and (
            SIGN in value or any(_has_other_values(item) for item in value.values())
        )
    return True


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
