"""Copy a shard into the live state, in place. What does not fit is listed, and nothing is loaded then."""

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.checkpoint.digests import BLOCK, checked_head
from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.layout import Layout, read_header, read_json
from runtime.checkpoint.pieces import whole
from runtime.checkpoint.stage import copy
from runtime.checkpoint.tree import Tree, flatten, places, prepare, put_back

_GROUP = 2 * BLOCK
_LISTED = 10


def restore(data: memoryview, state: dict[str, Any], digest: str = "") -> int:
    """Load the shard in `data` into `state` (prepared optimizers included); returns its iteration.

    With `digest` the bytes are checked while they are copied, group by group, as they are in the cache then.
    Raises RestoreError: keys missing, unexpected or of another shape, a head that is damaged (nothing was loaded), or
    data that is (the state is partly overwritten: do not train on).
    """
    layout = read_header(data)
    if len(data) < layout.size:
        raise RestoreError(f"a shard of {layout.size} bytes, of which {len(data)} are there: it is torn")
    prepare(state)
    live = flatten(state)
    saved = read_json(layout, data)
    sources = places(saved["state"])
    own = {path: told(live.tensors[name].shape, live.tensors[name].dtype) for path, name in live.places.items()}
    held = {path: told(layout.places[name].shape, layout.places[name].dtype) for path, name in sources.items()}
    require_same(held, own, (state, saved["state"]))
    _copy_checked(data[: layout.size], layout, sources, live, digest)
    put_back(state, saved["state"])
    return int(saved["iteration"])


def _copy_checked(data: memoryview, layout: Layout, sources: dict[str, str], live: Tree, digest: str) -> None:
    """Copy every tensor, checking the file on the way if there is a digest."""
    digests = checked_head(data, digest) if digest else None
    wanted: dict[str, list[str]] = {}
    for path in live.tensors:
        wanted.setdefault(sources[path], []).append(path)
    checked, group = len(digests.head) if digests else 0, 0
    targets, origins = [], []
    for name, place in layout.places.items():
        for path in wanted.get(name, ()):
            targets.append(live.tensors[path])
            origins.append(place.view(data))
        group += place.size
        if group >= _GROUP:
            if digests:
                end = digests.blocks(checked, place.start + place.size, layout.size)[1]
                digests.check(checked, data[checked:end])
                checked = end
            copy(targets, origins)
            group, targets, origins = 0, [], []
    if digests:
        digests.check(checked, data[checked:])
    copy(targets, origins)


def cut_alike(layout: Layout, saved: Any, state: dict[str, Any]) -> bool:
    """Is each tensor that both have the same part of the same whole in the shard and in the live state?"""
    sources, live = places(saved["state"]), flatten(state)
    pieces = live.pieces()
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
