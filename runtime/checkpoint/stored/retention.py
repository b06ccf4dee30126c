"""Which checkpoints stay in the store: the newest ones, and every so many iterations one. Debris goes, too.

A checkpoint's manifest is deleted first, then its objects: whoever finds a manifest finds what it names. What a crash
leaves of a deletion, or of a checkpoint that was never whole, is debris once a newer one is committed and it is old.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everstep.runtime import faults
from everstep.runtime.checkpoint.stored.keys import MANIFEST, Place, checkpoints_of, grouped, place_of
from everstep.runtime.store import Entry, Store

DEBRIS_S = 3600.0
"""What is not committed, nor newer than what is, and has not changed for so long, belongs to nobody."""


@dataclass
class Found:
    """What a store has of one (round, iteration)."""

    keys: list[str] = field(default_factory=list)
    committed: bool = False
    modified: float = 0.0
    """Unix time at which the newest of its objects was written."""


class Kept(NamedTuple):
    """What stays: of committed checkpoints the newest `last` (0: all), and of each iteration that is a multiple of
    `every` (0: none) the newest; what the running round began from; the newest committed one, and all that is newer.
    What was passed over stays for whoever looks, and counts for nothing."""

    last: int = 0
    every: int = 0
    begun: Place = (0, 0)
    passed_over: frozenset[Place] = frozenset()


def unneeded(store: Store, job: str, kept: Kept, now: float | None = None) -> dict[Place, list[str]]:
    """The keys of what `surplus` names, in the order of their deletion. Blocking. Raises StoreError."""
    found = found_in(store.list(checkpoints_of(job)))
    gone = surplus(found, kept, time.time() if now is None else now)
    return {place: sorted(found[place].keys, key=lambda key: not key.endswith(f"/{MANIFEST}")) for place in gone}


def delete(store: Store, gone: Mapping[Place, Iterable[str]]) -> None:
    """Delete these, which nobody will begin from any more. Blocking. Raises StoreError."""
    for place, keys in gone.items():
        for key in keys:
            store.delete(key)
            faults.point("retention.after_delete", iteration=place[1])


def found_in(entries: Iterable[Entry]) -> dict[Place, Found]:
    """The objects of each (round, iteration) below one job's checkpoints."""
    found: dict[Place, Found] = {}
    for key, folder in grouped(entries).items():
        objects = folder.objects.values()
        if place := place_of(key):
            newest = max(entry.modified for entry in objects)
            found[place] = Found([entry.key for entry in objects], folder.committed, newest)
    return found


def surplus(found: dict[Place, Found], kept: Kept, now: float) -> list[Place]:
    """What need not stay, the oldest first; debris only when it is old, for somebody may still be writing it."""
    committed = sorted(place for place, one in found.items() if one.committed and place not in kept.passed_over)
    if not committed:
        return []
    stays = {*committed[-kept.last :], *_multiples(committed, kept.every), kept.begun, *kept.passed_over}
    return sorted(
        place
        for place, one in found.items()
        if place < committed[-1] and place not in stays and (one.committed or one.modified < now - DEBRIS_S)
    )


def _multiples(committed: Collection[Place], every: int) -> Iterator[Place]:
    newest = {iteration: (round_, iteration) for round_, iteration in sorted(committed)}
    return (place for iteration, place in newest.items() if every and iteration % every == 0)
