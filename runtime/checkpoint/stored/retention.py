"""Which checkpoints stay in the store: the newest ones, and every so many iterations one. Debris goes, too.

A checkpoint's manifest is deleted first, then its objects: whoever finds a manifest finds what it names. What a crash
leaves of a deletion, or of a checkpoint that was never whole, is debris once a newer one is committed and it is old.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everstep.runtime import faults
from everstep.runtime.checkpoint.stored.keys import (
    MANIFEST,
    CheckpointId,
    checkpoints_prefix,
    group_by_checkpoint,
    parse_folder,
)
from everstep.runtime.store import Entry, Store

DEBRIS_S = 3600.0
"""What is not committed, nor newer than what is, and has not changed for so long, belongs to nobody."""


@dataclass
class StoredObjects:
    """What a store has of one (round, iteration)."""

    keys: list[str] = field(default_factory=list)
    committed: bool = False
    modified: float = 0.0
    """Unix time at which the newest of its objects was written."""


class RetentionPolicy(NamedTuple):
    """What stays: of committed checkpoints the newest `last` (0: all), and of each iteration that is a multiple of
    `every` (0: none) the newest; what the running round began from; the newest committed one, and all that is newer.
    What was passed over stays for whoever looks, and counts for nothing."""

    last: int = 0
    every: int = 0
    begun: CheckpointId = (0, 0)
    passed_over: frozenset[CheckpointId] = frozenset()


def keys_to_delete(
    store: Store, job: str, kept: RetentionPolicy, now: float | None = None
) -> dict[CheckpointId, list[str]]:
    """The keys of what `surplus` names, in the order of their deletion. Blocking. Raises StoreError."""
    found = objects_by_checkpoint(store.list(checkpoints_prefix(job)))
    gone = surplus(found, kept, time.time() if now is None else now)
    return {place: sorted(found[place].keys, key=lambda key: not key.endswith(f"/{MANIFEST}")) for place in gone}


def delete_checkpoints(store: Store, gone: Mapping[CheckpointId, Iterable[str]]) -> None:
    """Delete these, which nobody will begin from any more. Blocking. Raises StoreError."""
    for place, keys in gone.items():
        for key in keys:
            store.delete(key)
            faults.point("retention.after_delete", iteration=place[1])


def objects_by_checkpoint(entries: Iterable[Entry]) -> dict[CheckpointId, StoredObjects]:
    """The objects of each (round, iteration) below one job's checkpoints."""
    found: dict[CheckpointId, StoredObjects] = {}
    for key, folder in group_by_checkpoint(entries).items():
        objects = folder.objects.values()
        if place := parse_folder(key):
            newest = max(entry.modified for entry in objects)
            found[place] = StoredObjects([entry.key for entry in objects], folder.committed, newest)
    return found


def surplus(found: dict[CheckpointId, StoredObjects], kept: RetentionPolicy, now: float) -> list[CheckpointId]:
    """What need not stay, the oldest first; debris only when it is old, for somebody may still be writing it."""
    committed = sorted(place for place, one in found.items() if one.committed and place not in kept.passed_over)
    if not committed:
        return []
    stays = {*committed[-kept.last :], *_newest_of_multiples(committed, kept.every), kept.begun, *kept.passed_over}
    return sorted(
        place
        for place, one in found.items()
        if place < committed[-1] and place not in stays and (one.committed or one.modified < now - DEBRIS_S)
    )


def _newest_of_multiples(committed: Collection[CheckpointId], every: int) -> Iterator[CheckpointId]:
    newest = {iteration: (round_, iteration) for round_, iteration in sorted(committed)}
    return (place for iteration, place in newest.items() if every and iteration % every == 0)
