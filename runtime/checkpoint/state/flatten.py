"""A user's state as a flat list of tensors and one JSON value, and back into the live objects.

JSON says what is not a tensor as itself, with these signs (the key is `$`): a tensor's name, a tuple, a dict whose keys
are not all strings, a float that JSON lacks.
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
from everstep.runtime.checkpoint.state.parts import Piece, is_sharded_kind, local, piece, spread
from everstep.runtime.checkpoint.state.stateful import Stateful, prepare_optimizer, take_back, unwrapped
from everstep.runtime.checkpoint.state.traversal import MANY, ChangedError, Found, Walk

SIGN = "$"
_HOLDERS = (dict, torch.optim.Optimizer)
RESERVED = "__everstep_"


@dataclass
class Tree:
    """A flattened state."""

    found: list[Found] = field(default_factory=list)
    """All of its tensors."""
    places: dict[str, str] = field(default_factory=dict)
    """Every key path at which a tensor stands -> its name in `tensors`."""
    json: Any = None
    """The rest, ready for `json_bytes`."""
    walk: Walk = field(default_factory=Walk)
    """Trees of one walk have the same tensors at the same places."""

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """By key path, parts joined with '.'; a tensor that stands at two places is here once. This rank's part of
        each. Made when it is asked for: a state that is as it was is staged and loaded without."""
        return {name: one for found in self.found for name, one in zip(found.names, found.tensors, strict=True)}

    @cached_property
    def live(self) -> dict[str, torch.Tensor]:
        """The same as the state has them, where that may be something else."""
        others = [found for found in self.found if found.live is not found.tensors]
        return {name: one for found in others for name, one in zip(found.names, found.live, strict=True)}

    def pieces(self) -> dict[str, Piece]:
        """What the DTensors' parts are parts of, by name in `tensors`."""
        return {name: piece(tensor) for name, tensor in self.live.items() if is_sharded_kind(tensor)}

    def sharded(self) -> bool:
        """Does each rank hold something else? The same answer on every rank."""
        return any(spread(tensor) for tensor in self.live.values())

    def as_found(self, path: str) -> torch.Tensor:
        """The tensor at that key path as the state has it."""
        name = self.places[path]
        return self.live[name] if name in self.live else self.tensors[name]


class Walker:
    """Flattens one state again and again; where its tensors are the same as before, quickly (see `walk`)."""

    def __init__(self) -> None:
        self._walk = Walk()

    def flatten(self, state: Any) -> Tree:
        """As `flatten` does it. Raises StateError."""
        if not self._walk.fresh:
            with suppress(ChangedError):
                return _flattened(state, self._walk)
        self._walk = Walk()
        return _flattened(state, self._walk)


def flatten(state: Any) -> Tree:
    """Tensors and JSON of `state`: dicts, lists, tuples, tensors, numbers, strings, None and objects with state_dict.

    Raises StateError naming the key path of anything else.
    """
    return Walker().flatten(state)


def _flattened(state: Any, walk: Walk) -> Tree:
    tree = Tree(walk=walk)
    again: set[str] = set()
    with torch.no_grad():
        tree.json = _encode(state, "", tree, again)
    tree.places = walk.ended(len(again), tree.places)
    return tree


def _encode(value: Any, path: str, tree: Tree, again: set[str]) -> Any:
    """What stands for `value` in the JSON; `again` gets the paths of groups that are as they were."""
    value = unwrapped(value)
    if isinstance(value, torch.Tensor):
        return {SIGN: "tensor", "name": _add(value, path, tree)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {SIGN: "float", "value": repr(value)}
    if isinstance(value, dict):
        return _encode_dict(value, path, tree, again)
    if isinstance(value, list | tuple):
        items = [_encode(item, _join(path, place), tree, again) for place, item in enumerate(value)]
        return items if isinstance(value, list) else {SIGN: "tuple", "items": items}
    if isinstance(value, Stateful):
        return _encode(value.state_dict(), path, tree, again)
    raise StateError(
        f"{path or 'state'}: a {type(value).__name__} cannot be checkpointed; give tensors, numbers, strings, "
        "dicts and lists of them, or an object with state_dict and load_state_dict"
    )


def _encode_dict(value: dict[Any, Any], path: str, tree: Tree, again: set[str]) -> Any:
    walk = tree.walk
    if known := walk.again(path, value):
        again.add(path)
        group, found = known
        tree.found.append(found)
        return group.json
    before = len(tree.places)
    inner = {key: _encode(item, _join(path, key), tree, again) for key, item in value.items()}
    if all(isinstance(key, str) for key in inner) and SIGN not in inner:
        encoded = inner
    elif all(isinstance(key, str | int) and not isinstance(key, bool) for key in inner):
        encoded = {SIGN: "dict", "items": [[key, item] for key, item in inner.items()]}
    else:
        raise StateError(f"{path or 'state'}: a dict with keys that are neither strings nor integers")
    if walk.fresh and len(tree.places) - before >= MANY:
        return walk.remember(path, value, encoded, dict(islice(tree.places.items(), before, None)))
    return encoded


def _add(live: torch.Tensor, path: str, tree: Tree) -> str:
    tensor = local(live)
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        raise StateError(
            f"{path}: only dense tensors with data can be checkpointed, not {tensor.layout} on {tensor.device}"
        )
    if path in tree.places or path.startswith(RESERVED):
        raise StateError(f"{path}: two tensors of the state have this key path, or it begins with {RESERVED}")
    name = tree.walk.name(path, tensor)
    tree.places[path] = name
    if name == path:
        tree.found.append(Found([name], [tensor.detach()], [live]))
    return name


def decode(value: Any, tensor: Callable[[str], Any]) -> Any:
    """The state that `_encode` wrote; `tensor(name)` gives what stands for each tensor."""
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
        case other:
            raise StateError(f"a checkpoint of a later Everstep: unknown sign {other!r}")


def places(value: Any, path: str = "", walk: Walk | None = None) -> dict[str, str]:
    """Key path -> tensor name of a JSON state, as `Tree.places` has it; a group of `walk` may stand in it as a Raw."""
    if isinstance(value, msgspec.Raw):
        assert walk is not None
        return walk.groups[path].places
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
    found: dict[str, str] = {}
    for key, item in items:
        found.update(places(item, _join(path, key), walk))
    return found


def named(value: Any) -> set[str]:
    """The names of all tensors in a JSON state; what stands in it as a Raw is known. Raises ValueError, TypeError,
    LookupError where it is not as `_encode` writes it."""
    if isinstance(value, list):
        return set().union(*map(named, value))
    if not isinstance(value, dict):
        return set()
    match value.get(SIGN):
        case None:
            return set().union(*map(named, value.values()))
        case "tensor" if isinstance(value["name"], str):
            return {value["name"]}
        case "tuple" if isinstance(value["items"], list):
            return named(value["items"])
        case "dict" if isinstance(value["items"], list):
            if not all(isinstance(key, str | int) for key, _ in value["items"]):
                raise TypeError("a key that is neither a string nor an integer")
            return set().union(*(named(item) for _, item in value["items"]))
        case "float" if isinstance(value["value"], str):
            float(value["value"])
            return set()
    raise ValueError(f"unknown sign {value[SIGN]!r}: damaged, or of a later Everstep")


def prepare(state: Any, path: str = "") -> None:
    """Make the optimizers in `state` have a state, so that its tensors and their sizes are known."""
    if isinstance(state, torch.optim.Optimizer):
        prepare_optimizer(state, path)
    elif isinstance(state, dict):
        for key, item in state.items():
            if isinstance(item, _HOLDERS):
                prepare(item, _join(path, key))


def put_back(live: Any, saved: Any, tree: Tree, path: str = "") -> Any:
    """Set everything in `live` that is no tensor from the JSON `saved`; `tree`, of the whole state, has its tensors,
    which hold their values already: an object whose `state_dict` makes new ones each time is given these. What stands
    in `saved` as a Raw is text that `live` gave, too.

    Returns what stands in the place of `live` now: itself when it could be changed in place.
    """
    inner = unwrapped(live)
    if isinstance(inner, torch.Tensor) or (isinstance(inner, torch.nn.Module) and not _has_more(saved)):
        return live
    if isinstance(inner, Stateful):
        take_back(inner, _merged(saved, tree, path))
        return live
    if isinstance(inner, dict) and isinstance(saved, msgspec.Raw):
        return live
    if isinstance(inner, dict) and isinstance(saved, dict) and saved.get(SIGN) in (None, "dict"):
        for key, item in saved["items"] if SIGN in saved else saved.items():
            inner[key] = put_back(inner.get(key), item, tree, _join(path, key))
        return live
    items = saved["items"] if isinstance(saved, dict) and saved.get(SIGN) == "tuple" else saved
    if isinstance(inner, list | tuple) and isinstance(items, list) and len(inner) == len(items):
        pairs = enumerate(zip(inner, items, strict=True))
        both = [put_back(old, item, tree, _join(path, place)) for place, (old, item) in pairs]
        if isinstance(inner, tuple):
            return tuple(both)
        inner[:] = both
        return live
    return _merged(saved, tree, path)


def _merged(saved: Any, tree: Tree, path: str) -> Any:
    """`saved`, which stands at `path`, with the live tensor at each of its places."""
    return decode(_by_place(saved, path), tree.as_found)


def _by_place(value: Any, path: str) -> Any:
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if isinstance(value, list):
        return [_by_place(item, _join(path, place)) for place, item in enumerate(value)]
    if not isinstance(value, dict) or value.get(SIGN) == "float":
        return value
    match value.get(SIGN):
        case "tensor":
            return {SIGN: "tensor", "name": path}
        case "tuple":
            items = [_by_place(item, _join(path, place)) for place, item in enumerate(value["items"])]
            return {SIGN: "tuple", "items": items}
        case "dict":
            return {SIGN: "dict", "items": [[key, _by_place(item, _join(path, key))] for key, item in value["items"]]}
    return {key: _by_place(item, _join(path, key)) for key, item in value.items()}


def _has_more(value: Any) -> bool:
    """Is there anything but tensors?"""
    if isinstance(value, msgspec.Raw):
        return False
    if isinstance(value, dict):
        return value.get(SIGN) != "tensor" and (SIGN in value or any(_has_more(item) for item in value.values()))
    return True


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
