"""What a master sees of its job's checkpoints in the store: a listing, and the manifests of the newest.

It finds at once what is gone, cut short, moved, or of a later Everstep, and what the journal does not tell of. That
bytes are not what they were, whoever reads them finds out.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from runtime.checkpoint.commits import Commit, checked
from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.keys import Folder, Place, checkpoints_of, folder_of, grouped, manifest_key, place_of
from runtime.job.checkpoints import KEPT, Checkpoint
from runtime.job.events import Survey
from runtime.job.messages import Flaw, Holding, Refusal
from runtime.job.records import Stored
from runtime.job.state import State
from runtime.store import Store

_AT_ONCE = 8
"""Manifests that are read at once."""


def survey(store: Store, job: str, state: State) -> Survey:
    """Look at the newest committed checkpoints that the store has, but for those that are refused already, and at those
    that the journal knows. One listing, and a read for each committed one. Blocking. Raises StoreError."""
    folders = {place: one for key, one in grouped(store.list(checkpoints_of(job))).items() if (place := place_of(key))}
    refused = {(one.round, one.iteration) for one in state.refused if not one.node}
    committed = [place for place in sorted(folders, reverse=True) if folders[place].committed and place not in refused]
    gone = list(_gone(job, folders, state))
    seen = {(one.round, one.iteration) for one in gone}
    looked_at = [
        place
        for number, place in enumerate(committed)
        if place not in seen and (number < KEPT or place in state.checkpoints)
    ]
    with ThreadPoolExecutor(_AT_ONCE, "everstep-survey") as threads:
        commits = list(threads.map(lambda place: _read(store, folders[place]), looked_at))
    found: list[Stored] = []
    for place, commit in zip(looked_at, commits, strict=True):
        known = state.checkpoints.get(place)
        shards = commit.shards(folders[place].key) if isinstance(commit, Commit) else ()
        if isinstance(commit, RestoreError):
            gone.append(_refusal(job, place, str(commit), commit.flaw or Flaw.DAMAGED))
        elif known is not None and _differ(known, shards):
            gone.append(_refusal(job, place, "its manifest is not what was committed"))
        elif known is None:
            found.append(Stored(manifest_key(job, place), shards))
    return Survey(tuple(found), tuple(gone), max((round_ for round_, _ in folders), default=0))


def _read(store: Store, folder: Folder) -> Commit | RestoreError:
    try:
        return checked(store, folder)
    except RestoreError as error:
        return error


def _differ(known: Checkpoint, shards: tuple[Holding, ...]) -> bool:
    """Does the manifest say something else than the journal? What the journal knows in part can only agree in part."""
    told = {shard.shard: (shard.shards, shard.size, shard.digest) for shard in shards}
    return any(told.get(held.shard) != (held.shards, held.size, held.digest) for held in known.shards)


def _gone(job: str, folders: dict[Place, Folder], state: State) -> Iterator[Refusal]:
    """What the journal knows whole and the store has not, or no more."""
    for place, known in state.checkpoints.items():
        if not known.shards or len(known.shards) < known.shards[0].shards:
            continue
        folder = folders.get(place)
        if folder is None:
            yield _refusal(job, place, f"{folder_of(job, place)} is gone")
            continue
        if known.manifest and not folder.committed:
            yield _refusal(job, place, "its manifest is gone")
            continue
        for shard in known.shards:
            entry = folder.objects.get(shard.key.rpartition("/")[2])
            if entry is None or entry.size != shard.size:
                left = "is gone" if entry is None else f"has {entry.size} bytes, {shard.size} were put"
                yield _refusal(job, place, f"{shard.key.rpartition('/')[2]} {left}")
                break


def _refusal(job: str, place: Place, why: str, flaw: Flaw = Flaw.DAMAGED) -> Refusal:
    """Of all objects of that checkpoint."""
    return Refusal(*place, why, flaw, key=f"{folder_of(job, place)}/")
