"""Retention: which checkpoints stay in the store, and the deletion of the others and of debris.

The manifest of a checkpoint is deleted first, then its objects. Invariant: every object that a manifest names exists. A
crash during a deletion, or before a commit, leaves debris; it is deleted when it is old and a newer checkpoint is
committed.
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
"""An uncommitted checkpoint is debris if it is older than a committed one and has not changed for this long."""


@dataclass
class StoredObjects:
    """The objects of one (round, iteration) in a store."""

    keys: list[str] = field(default_factory=list)
    committed: bool = False
    modified: float = 0.0
    """Unix time of its newest object."""


class RetentionPolicy(NamedTuple):
    """The checkpoints to keep: the newest `last` committed ones (0: all); of each iteration that is a multiple of
    `every` (0: none) the newest; the one that the running round started from; the newest committed one and all that is
    newer. Those passed over are kept for inspection, and do not count."""

    last: int = 0
    every: int = 0
    started_from: CheckpointId = (0, 0)
    passed_over: frozenset[CheckpointId] = frozenset()


def keys_to_delete(
    store: Store, job: str, policy: RetentionPolicy, now: float | None = None
) -> dict[CheckpointId, list[str]]:
    """The keys of the surplus checkpoints, in the order of their deletion. Blocking. Raises StoreError."""
    checkpoints = objects_by_checkpoint(store.list(checkpoints_prefix(job)))
    surplus_keys = surplus(checkpoints, policy, time.time() if now is None else now)
    return {
        place: sorted(checkpoints[place].keys, key=lambda key: not key.endswith(f"/{MANIFEST}"))
        for place in surplus_keys
    }


def delete_checkpoints(store: Store, surplus_keys: Mapping[CheckpointId, Iterable[str]]) -> None:
    """Delete these; no worker will start from them any more. Blocking. Raises StoreError."""
    for place, keys in surplus_keys.items():
        for key in keys:
            store.delete(key)
            faults.point("retention.after_delete", iteration=place[1])


def objects_by_checkpoint(entries: Iterable[Entry]) -> dict[CheckpointId, StoredObjects]:
    """The objects of each (round, iteration) below one job's checkpoints."""
    checkpoints: dict[CheckpointId, StoredObjects] = {}
    for key, folder in group_by_checkpoint(entries).items():
        objects = folder.objects.values()
        if place := parse_folder(key):
            newest = max(entry.modified for entry in objects)
            checkpoints[place] = StoredObjects([entry.key for entry in objects], folder.committed, newest)
    return checkpoints


def surplus(checkpoints: dict[CheckpointId, StoredObjects], policy: RetentionPolicy, now: float) -> list[CheckpointId]:
    """The checkpoints to delete, the oldest first. Young debris stays, as a writer may still be at work on it."""
    committed_places = sorted(
        place for place, checkpoint in checkpoints.items() if checkpoint.committed and place not in policy.passed_over
    )
    if not committed_places:
        return []
    stays = {
        *committed_places[-policy.last :],
        *_newest_of_multiples(committed_places, policy.every),
        policy.started_from,
        *policy.passed_over,
    }
    return sorted(
        place
        for place, checkpoint in checkpoints.items()
        if place < committed_places[-1]
        and place not in stays
        and (checkpoint.committed or checkpoint.modified < now - DEBRIS_S)
    )


def _newest_of_multiples(committed_places: Collection[CheckpointId], every: int) -> Iterator[CheckpointId]:
    newest = {iteration: (round_, iteration) for round_, iteration in sorted(committed_places)}
    return (place for iteration, place in newest.items() if every and iteration % every == 0)
