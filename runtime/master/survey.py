"""A survey of a job's checkpoints in the store: one listing, and the manifests of the newest checkpoints.

It finds checkpoints that are missing, truncated, moved, written by a later version of Everstep, or unknown to the
journal. Damaged bytes are found only when they are read.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.stored.keys import (
    MANIFEST,
    CheckpointFolder,
    CheckpointId,
    checkpoint_folder,
    checkpoints_prefix,
    group_by_checkpoint,
    manifest_key,
    parse_folder,
)
from everstep.runtime.checkpoint.stored.manifest import Commit, encode_manifest, read_listed_commit
from everstep.runtime.checkpoint.stored.reports import reported_commit
from everstep.runtime.job.checkpoints import KEPT_CHECKPOINTS, Checkpoint, Stored
from everstep.runtime.job.events import Survey
from everstep.runtime.job.state import State
from everstep.runtime.protocol.holdings import Flaw, Holding, Refusal
from everstep.runtime.store import Entry, Store

_PARALLEL_READS = 8
"""Manifests read in parallel."""


def survey_store(store: Store, job: str, state: State) -> Survey:
    """Survey the committed checkpoints in the store that are not refused yet: the newest until KEPT_CHECKPOINTS of them
    may be intact, and all that the journal knows. One listing, and one read per checkpoint. Blocking. Raises
    StoreError."""
    folders = {
        place: folder
        for key, folder in group_by_checkpoint(store.list(checkpoints_prefix(job))).items()
        if (place := parse_folder(key))
    }
    refusals = {place: _refusal(job, place, why) for place, why in _damaged_checkpoints(job, folders, state)}
    refused_places = {(refusal.round, refusal.iteration) for refusal in state.refused if not refusal.node}
    committed = {place for place, folder in folders.items() if folder.committed or _commit_reported(store, job, folder)}
    places_left = [
        place
        for place in sorted(folders, reverse=True)
        if place in committed and place not in refused_places and place not in refusals
    ]
    # Of a checkpoint that was committed since, by reports or by a master that died before it could journal that, the
    # journal may know shards, though no manifest.
    journaled = {place: checkpoint for place, checkpoint in state.checkpoints.items() if checkpoint.manifest}
    intact: dict[CheckpointId, Stored] = {}
    while places_left and (len(intact) < KEPT_CHECKPOINTS or any(place in state.checkpoints for place in places_left)):
        some, places_left = places_left[:_PARALLEL_READS], places_left[_PARALLEL_READS:]
        with ThreadPoolExecutor(_PARALLEL_READS, "everstep-survey") as threads:
            for place, commit in zip(
                some, threads.map(lambda place: _read_commit(store, folders[place]), some), strict=True
            ):
                known_checkpoint = journaled.get(place)
                if isinstance(commit, RestoreError):
                    refusals[place] = _refusal(job, place, str(commit), commit.flaw or Flaw.DAMAGED)
                elif known_checkpoint is not None and _differs(known_checkpoint, commit.holdings(folders[place].key)):
                    refusals[place] = _refusal(job, place, "its manifest is not what was committed")
                else:
                    intact[place] = Stored(
                        manifest_key(job, place), commit.holdings(folders[place].key), commit.is_certified
                    )
    new_checkpoints = tuple(checkpoint for place, checkpoint in intact.items() if place not in journaled)
    return Survey(new_checkpoints, tuple(refusals.values()), max((round_ for round_, _ in folders), default=0))


def _read_commit(store: Store, folder: CheckpointFolder) -> Commit | RestoreError:
    try:
        return read_listed_commit(store, folder)
    except RestoreError as error:
        return error


def _commit_reported(store: Store, job: str, folder: CheckpointFolder) -> bool:
    """Commit a checkpoint whose nodes found no master, if all its shards are there; returns whether it is committed."""
    if (commit := reported_commit(store, job, folder)) is None:
        return False
    key = f"{folder.key}/{MANIFEST}"
    data = encode_manifest(commit)
    store.create(key, data)
    folder.objects[MANIFEST] = Entry(key, len(data), time.time())
    return True


def _differs(checkpoint: Checkpoint, shards: tuple[Holding, ...]) -> bool:
    """Whether the manifest contradicts the journal, which knows it, though perhaps not all of its shards."""
    in_manifest = {shard.shard: (shard.shards, shard.size, shard.digest) for shard in shards}
    return any(
        in_manifest.get(known_shard.shard) != (known_shard.shards, known_shard.size, known_shard.digest)
        for known_shard in checkpoint.shards
    )


def _damaged_checkpoints(
    job: str, folders: dict[CheckpointId, CheckpointFolder], state: State
) -> Iterator[tuple[CheckpointId, str]]:
    """Checkpoints that are complete in the journal but not in the store, and why."""
    for place, checkpoint in state.checkpoints.items():
        if not checkpoint.shards.is_complete:
            continue
        folder = folders.get(place)
        if folder is None:
            yield place, f"{checkpoint_folder(job, place)} is gone"
        elif checkpoint.manifest and not folder.committed:
            yield place, "its manifest is gone"
        elif wrong := next(_shard_flaws(folder, checkpoint.shards), None):
            yield place, wrong


def _shard_flaws(folder: CheckpointFolder, shards: Iterable[Holding]) -> Iterator[str]:
    for name, shard in ((shard.key.rpartition("/")[2], shard) for shard in shards):
        if (entry := folder.objects.get(name)) is None:
            yield f"{name} is gone"
        elif entry.size != shard.size:
            yield f"{name} has {entry.size} bytes, {shard.size} were written"


def _refusal(job: str, place: CheckpointId, why: str, flaw: Flaw = Flaw.DAMAGED) -> Refusal:
    """A refusal of all objects of that checkpoint."""
    return Refusal(*place, why, flaw, key=f"{checkpoint_folder(job, place)}/")
