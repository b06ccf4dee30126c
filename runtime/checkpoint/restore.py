"""Copy a shard into the live state, in place. What does not fit is listed, and nothing is loaded then."""

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from runtime.checkpoint.digests import BLOCK, Digests, checked_head
from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.layout import Layout, Place, read_header, read_json
from runtime.checkpoint.pieces import whole
from runtime.checkpoint.stage import Threads, copy
from runtime.checkpoint.tree import Tree, flatten, places, prepare, put_back

_GROUP = 2 * BLOCK
_LARGE = 64 << 10
_LISTED = 10
_move_at_once = ctypes.PyDLL(None).memmove
_move_at_once.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Opened(NamedTuple):
    """A shard whose bytes are here."""

    data: memoryview
    layout: Layout
    saved: dict[str, Any]
    """Its JSON part."""


def opened(data: memoryview, expected: Layout | None = None) -> Opened:
    """Read its head; a header that is the `expected` one's needs no reading. Raises RestoreError: it is torn."""
    same = expected is not None and bytes(data[: len(expected.header)]) == expected.header
    layout = expected if expected is not None and same else read_header(data)
    if len(data) < layout.size:
        raise RestoreError(f"a shard of {layout.size} bytes, of which {len(data)} are there: it is torn")
    return Opened(data[: layout.size], layout, read_json(layout, data))


def restore(data: memoryview, state: dict[str, Any], digest: str = "") -> int:
    """Load the shard in `data` into `state` (prepared optimizers included); returns its iteration.

    With `digest` the bytes are checked while they are copied, group by group, as they are in the cache then.
    Raises RestoreError: keys missing, unexpected or of another shape, a head that is damaged (nothing was loaded), or
    data that is (the state is partly overwritten: do not train on).
    """
    shard = opened(data)
    prepare(state)
    return load(shard, state, flatten(state), digest)


def load(shard: Opened, state: dict[str, Any], live: Tree, digest: str) -> int:
    """The same for a shard that is opened and a state that is prepared and flattened."""
    layout, saved = shard.layout, shard.saved["state"]
    sources = places(saved)
    if sources == live.places and layout.matches(live.tensors):
        require_same({}, {}, (state, saved))
    else:
        own = {path: told(live.tensors[name].shape, live.tensors[name].dtype) for path, name in live.places.items()}
        held = {path: told(layout.places[name].shape, layout.places[name].dtype) for path, name in sources.items()}
        require_same(held, own, (state, saved))
    _copy_checked(shard.data, layout, sources, live, digest)
    put_back(state, saved, live)
    return int(shard.saved["iteration"])


def _copy_checked(data: memoryview, layout: Layout, sources: dict[str, str], live: Tree, digest: str) -> None:
    """Copy every tensor, checking the file on the way if there is a digest: groups of them, by all threads."""
    digests = checked_head(data, digest) if digest else None
    wanted: dict[str, list[torch.Tensor]] = {}
    for path, tensor in live.tensors.items():
        wanted.setdefault(sources[path], []).append(tensor)

    def group(start: int, end: int, parts: list[_Part]) -> None:
        if digests:
            digests.check(start, data[start:end])
        pairs = [(target, part) for part in parts for target in wanted.get(part.name, ())]
        rest = [(target, part.place) for target, part in pairs if not _moved(target, part, address)]
        copy([target for target, _ in rest], [place.view(data) for _, place in rest])

    address = np.frombuffer(data, np.uint8).ctypes.data
    Threads().run(partial(group, *one) for one in _groups(layout, digests))


class _Part(NamedTuple):
    """Some bytes of a tensor."""

    name: str
    place: Place
    first: int
    """Counted from the tensor's own beginning."""
    last: int


def _moved(target: torch.Tensor, part: _Part, address: int) -> bool:
    """Copy it by this thread alone, as torch does not for large ones; False: it takes torch, for the whole tensor.

    A small one is done before another thread could make use of the interpreter's lock.
    """
    if not target.is_cpu or not target.is_contiguous() or target.is_conj() or target.is_neg():
        return part.first > 0
    size = part.last - part.first
    move = ctypes.memmove if size >= _LARGE else _move_at_once
    move(target.data_ptr() + part.first, address + part.place.start + part.first, size)
    return True


def _groups(layout: Layout, digests: Digests | None) -> Iterator[tuple[int, int, list[_Part]]]:
    """Bytes that stand together, and the whole blocks (first byte and end) that no earlier group checks."""
    checked, size = layout.table.start + layout.table.size, 0
    parts: list[_Part] = []
    for name, place in layout.places.items():
        for first in range(0, place.size or 1, _GROUP):
            parts.append(_Part(name, place, first, min(first + _GROUP, place.size)))
            size += parts[-1].last - first
            if size >= _GROUP:
                end = digests.blocks(checked, place.start + parts[-1].last, layout.size)[1] if digests else checked
                yield checked, end, parts
                checked, size, parts = end, 0, []
    yield checked, layout.size if digests else checked, parts


def cut_alike(shard: Opened, live: Tree) -> bool:
    """Is each tensor that both have the same part of the same whole in the shard and in the live state?"""
    pieces, layout = live.pieces(), shard.layout
    if not pieces and not layout.pieces:
        return True
    sources = places(shard.saved["state"])
    return all(
        layout.piece(sources[path]) == (pieces.get(name) or whole(live.tensors[name].shape))
        for path, name in live.places.items()
        if path in sources
    )


def told(shape: Iterable[int], dtype: Any) -> str:
    """As messages show a tensor."""
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def require_same(saved: Mapping[str, str], live: Mapping[str, str], both: tuple[dict[str, Any], Any]) -> None:
    """Key path -> `told` of both states' tensors, and the states. Raises RestoreError with what differs."""
    state, json = both
    missing = [path for path in live if path not in saved] + [key for key in state if key not in json]
    unexpected = [path for path in saved if path not in live] + [key for key in json if key not in state]
    misshaped = [
        f"{path} ({saved[path]} saved, {shape} wanted)"
        for path, shape in live.items()
        if path in saved and saved[path] != shape
    ]
    lines = [
        text
        for kind, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
        if (text := _listed(kind, found))
    ]
    if lines:
        raise RestoreError(f"the checkpoint is of another model or optimizer; nothing was loaded; {'; '.join(lines)}")


def _listed(kind: str, found: Iterable[str]) -> str:
    every = list(dict.fromkeys(found))
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return f"{kind}: {', '.join(every[:_LISTED])}{more}" if every else ""
