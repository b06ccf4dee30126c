"""What lies in a store: which checkpoints there are, and whether every byte of one is what it should be."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from runtime.checkpoint.committed import shards_of
from runtime.checkpoint.digests import BLOCK
from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.fetch import MANIFEST, read
from runtime.checkpoint.pieces import cover, whole
from runtime.checkpoint.reshard import Shard, open_shards
from runtime.job.messages import Holding
from runtime.store import NoSuchKey, Store

_AT_ONCE = 16 * BLOCK
_OBJECT = re.compile(r"(?:(.*)/)?((\d{6,})-(\d{9,}))/(manifest\.json|rank-\d{5,}\.safetensors)")


class Stored(NamedTuple):
    """What a store has of one (round, iteration)."""

    folder: str
    """The key's part that its objects share."""
    round: int
    iteration: int
    shards: int
    """Objects that are there."""
    size: int
    """Bytes of these."""
    manifest: dict[str, Any] | None
    """None: not committed, readers do not see it."""


def stored(store: Store, prefix: str = "") -> list[Stored]:
    """Every checkpoint below that prefix, by job, the newest last. Raises StoreError, RestoreError (a manifest)."""
    found: dict[str, list[tuple[str, int]]] = {}
    for entry in store.list(prefix):
        if _OBJECT.fullmatch(entry.key):
            folder, _, name = entry.key.rpartition("/")
            found.setdefault(folder, []).append((name, entry.size))
    return [_stored(store, folder, objects) for folder, objects in sorted(found.items())]


def _stored(store: Store, folder: str, objects: list[tuple[str, int]]) -> Stored:
    round_, _, iteration = folder.rpartition("/")[2].partition("-")
    manifest = None
    if any(name == MANIFEST for name, _ in objects):
        try:
            manifest = json.loads(store.get(f"{folder}/{MANIFEST}"))
        except NoSuchKey:  # It was removed meanwhile.
            manifest = None
        except ValueError as error:
            raise RestoreError(f"{folder}/{MANIFEST} is damaged: {error}") from None
    sizes = [size for name, size in objects if name != MANIFEST]
    return Stored(folder, int(round_), int(iteration), len(sizes), sum(sizes), manifest)


def problems(store: Store, folder: str, manifest: dict[str, Any]) -> Iterator[str]:
    """Read every byte of a committed checkpoint; one line for each thing that is wrong, none when it is whole."""
    shards = shards_of(folder, manifest)
    bytes_of = partial(read, store=store, token="")
    wrong = False
    for shard in shards:
        try:
            _read_all(shard, bytes_of)
        except RestoreError as error:
            wrong = True
            yield str(error)
    if wrong:
        return
    try:
        opened = open_shards(shards, bytes_of)
    except RestoreError as error:
        yield str(error)
        return
    if opened[0].saved["iteration"] != manifest["iteration"]:
        yield f"its shards are of iteration {opened[0].saved['iteration']}, the manifest says {manifest['iteration']}"
    yield from _holes(opened)


def _read_all(holding: Holding, bytes_of: Any) -> None:
    shard = Shard([holding], bytes_of)
    start, size = shard.layout.table.start + shard.layout.table.size, shard.layout.size
    buffer = memoryview(bytearray(min(_AT_ONCE, size - start)))
    for first in range(start, size, _AT_ONCE):
        shard.fill(first, buffer[: min(_AT_ONCE, size - first)])


def _holes(shards: list[Shard]) -> Iterator[str]:
    """Tensors of which no shard has some part."""
    paths = dict.fromkeys(path for shard in shards for path in shard.places)
    for path in paths:
        parts = [shard.layout.piece(shard.places[path]) for shard in shards if path in shard.places]
        missing = cover(whole(parts[0].whole).box, enumerate(part.box for part in parts))[1]
        if missing:
            yield f"{path}: no shard has the part at {list(missing[0].offset)} of {list(parts[0].whole)}"
