"""Copy a shard into the live state, in place. What does not fit is listed, and nothing is loaded then."""

from collections.abc import Iterable
from typing import Any

import xxhash

from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.layout import Layout, read_header, read_json
from runtime.checkpoint.stage import copy
from runtime.checkpoint.tree import Tree, flatten, places, prepare, put_back

_GROUP = 8 << 20
_LISTED = 10


def restore(data: memoryview, state: dict[str, Any], digest: str = "") -> int:
    """Load the shard in `data` into `state` (prepared optimizers included); returns its iteration.

    With `digest` (xxh3_128) the bytes are checked while they are copied, group by group, as they are in the cache then.
    Raises RestoreError: keys missing, unexpected or of another shape (nothing was loaded), or a digest that does not
    match (the state is partly overwritten: do not train on).
    """
    layout = read_header(data)
    if len(data) < layout.size:
        raise RestoreError(f"a shard of {layout.size} bytes, of which {len(data)} are there: it is torn")
    prepare(state)
    live = flatten(state)
    saved = read_json(layout, data)
    sources = places(saved["state"])
    _check(layout, sources, live, (state, saved["state"]))
    found = _copy_checked(data[: layout.size], layout, sources, live)
    if digest and found != digest:
        raise RestoreError(f"the checkpoint's digest is {found}, {digest} was promised: its bytes are damaged")
    put_back(state, saved["state"])
    return int(saved["iteration"])


def _copy_checked(data: memoryview, layout: Layout, sources: dict[str, str], live: Tree) -> str:
    """Copy every tensor, hashing the file on the way; returns the file's digest."""
    wanted: dict[str, list[str]] = {}
    for path in live.tensors:
        wanted.setdefault(sources[path], []).append(path)
    digest = xxhash.xxh3_128()
    hashed = group = 0
    targets, origins = [], []
    for name, place in layout.places.items():
        for path in wanted.get(name, ()):
            targets.append(live.tensors[path])
            origins.append(place.view(data))
        group += place.size
        if group >= _GROUP:
            digest.update(data[hashed : place.start + place.size])
            copy(targets, origins)
            hashed, group, targets, origins = place.start + place.size, 0, [], []
    digest.update(data[hashed:])
    copy(targets, origins)
    return digest.hexdigest()


def _check(layout: Layout, sources: dict[str, str], live: Tree, both: tuple[dict[str, Any], Any]) -> None:
    state, saved = both
    missing = [path for path in live.places if path not in sources] + [key for key in state if key not in saved]
    unexpected = [path for path in sources if path not in live.places] + [key for key in saved if key not in state]
    misshaped = [
        f"{path} ({_shape(layout.places[sources[path]])} saved, {_shape(live.tensors[name])} wanted)"
        for path, name in live.places.items()
        if path in sources and _shape(layout.places[sources[path]]) != _shape(live.tensors[name])
    ]
    lines = [
        text
        for kind, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
        if (text := _listed(kind, found))
    ]
    if lines:
        raise RestoreError(f"the checkpoint is of another model or optimizer; nothing was loaded; {'; '.join(lines)}")


def _shape(tensor: Any) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _listed(kind: str, found: Iterable[str]) -> str:
    every = list(dict.fromkeys(found))
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return f"{kind}: {', '.join(every[:_LISTED])}{more}" if every else ""
