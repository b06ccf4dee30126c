"""The commit of a checkpoint: its `manifest.json`, as one Struct with a version that every reader checks.

A reader returns a commit only if it is plausible: it lies where it was committed, and its objects exist with the sizes
that were committed. The bytes of the objects are checked when they are read.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from everstep.runtime.checkpoint.errors import DamagedError, NewerError, UnreachableError
from everstep.runtime.checkpoint.stored.keys import MANIFEST, CheckpointFolder, folder_name, parse_folder
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import NoSuchKey, Store, StoreError

VERSION = 1
"""Increased when a field changes its meaning. Manifests of a higher version are refused with a message."""
MAX_BYTES = 64 << 20
"""Larger manifests are refused; this is some 300,000 shards."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Object(msgspec.Struct, frozen=True):
    """A shard in the store."""

    key: str
    """The key at the time of the commit. If the checkpoint was copied, its objects stand beside the manifest."""
    shard: _Count
    shards: _Count
    size: _Count
    digest: _Digest


class Commit(msgspec.Struct, frozen=True):
    """A committed checkpoint."""

    version: int
    job: str
    round: _Count
    iteration: _Count
    world_size: _Count
    """Number of ranks that trained; 0: unknown."""
    objects: tuple[Object, ...]
    is_certified: bool = False
    """Its replicas were compared before the commit, and agreed."""

    def holdings(self, folder: str) -> tuple[Holding, ...]:
        """Its shards in `folder` ("": the root of the store)."""
        before = f"{folder}/" if folder else ""
        return tuple(
            Holding(
                self.round, self.iteration, object_.shard, object_.shards, object_.size,
                key=before + object_.key.rpartition("/")[2], digest=object_.digest,
            )
            for object_ in self.objects
        )  # fmt: skip


class _Versioned(msgspec.Struct):
    version: int


_commit = msgspec.json.Decoder(Commit).decode
_versioned = msgspec.json.Decoder(_Versioned).decode


def make_commit(job: str, world_size: int, shards: Iterable[Holding], is_certified: bool = False) -> Commit:
    """The commit of these, which are all shards of one (round, iteration)."""
    every = sorted(shards, key=lambda holding: holding.shard)
    objects = tuple(
        Object(holding.key, holding.shard, holding.shards, holding.size, holding.digest) for holding in every
    )
    return Commit(VERSION, job, every[0].round, every[0].iteration, world_size, objects, is_certified)


def encode_manifest(commit: Commit) -> bytes:
    """The bytes of the manifest."""
    return msgspec.json.format(msgspec.json.encode(commit), indent=1)


def parse_manifest(data: bytes) -> Commit:
    """Raises DamagedError, NewerError."""
    try:
        version = _versioned(data).version
        if version > VERSION:
            text = f"its manifest has version {version}, this Everstep reads up to {VERSION}; use a newer one"
            raise NewerError(text)
        commit = _commit(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"its manifest is damaged: {error}") from None
    numbers = [object_.shard for object_ in commit.objects]
    count = len(numbers)
    if (
        version != VERSION
        or sorted(numbers) != list(range(count))
        or {object_.shards for object_ in commit.objects} != {count}
    ):
        raise DamagedError(f"its manifest is damaged: version {version}, shards {numbers[:8]} of {count}")
    return commit


def read_commit(store: Store, folder: str) -> Commit:
    """The commit of the checkpoint in `folder` ("": the root of the store). Takes one listing and one read. Raises
    NoSuchKey if it is not committed; StoreError; RestoreError as `read_listed_commit` does."""
    below = f"{folder}/" if folder else ""
    entries = [entry for entry in store.list(below) if "/" not in entry.key.removeprefix(below)]
    checkpoint = CheckpointFolder(folder, {entry.key.removeprefix(below): entry for entry in entries})
    if not checkpoint.committed:
        raise NoSuchKey(f"{below}{MANIFEST}")
    return read_listed_commit(store, checkpoint)


def read_listed_commit(store: Store, folder: CheckpointFolder) -> Commit:
    """The commit of a listed checkpoint; its shards are not read. Raises DamagedError, NewerError, or UnreachableError
    if the store lists the manifest but does not return it."""
    key = f"{folder.key}/{MANIFEST}" if folder.key else MANIFEST
    if folder.objects[MANIFEST].size > MAX_BYTES:
        raise DamagedError(f"its manifest is damaged: {folder.objects[MANIFEST].size} bytes")
    try:
        commit = parse_manifest(store.get(key))
    except NoSuchKey:
        raise DamagedError("its manifest is gone") from None
    except StoreError as error:
        raise UnreachableError(f"its manifest cannot be read: {error}") from None
    place = (commit.round, commit.iteration)
    if parse_folder(folder.key) not in (None, place):
        raise DamagedError(f"its manifest belongs to {folder_name(place)}: it was moved or renamed")
    for object_ in commit.objects:
        name = object_.key.rpartition("/")[2]
        entry = folder.objects.get(name)
        if entry is None:
            raise DamagedError(f"{name} is gone")
        if entry.size != object_.size:
            raise DamagedError(f"{name} has {entry.size} bytes, {object_.size} were committed")
    return commit
