"""The checkpoints in the store as the journal knows them: which shards of which (round, iteration) are there, and which
checkpoints are committed. Part of the state."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import msgspec
from msgspec.structs import replace

from everstep.runtime.protocol.holdings import Holding, Refusal

MAX_LISTED = 4
"""Checkpoints, and reasons for each, that one line lists."""
KEPT_CHECKPOINTS = 16
"""Checkpoints that the state remembers: the newest ones, and the newest committed one."""


class Shards:
    """The shards of one checkpoint, each number once: an immutable collection with insertion in constant time.

    Versions share one dictionary that only grows. Invariant: a version is its first `_size` entries. Adding to a
    version that is not the newest copies the dictionary.
    """

    __slots__ = ("_places", "_shared", "_size")

    def __init__(self, shards: Iterable[Holding] = ()) -> None:
        self._shared = {holding.shard: holding for holding in shards}
        self._places = {shard: at for at, shard in enumerate(self._shared)}
        self._size = len(self._shared)

    def __iter__(self) -> Iterator[Holding]:
        return islice(list(self._shared.values()), self._size)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, shard: int) -> bool:
        return self._places.get(shard, self._size) < self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shards) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shards({list(self)})"

    @property
    def expected(self) -> int:
        """The number of shards in the complete checkpoint, as the first shard says; 1 before the first."""
        return next((shard.shards for shard in self._shared.values()), 1) if self._size else 1

    @property
    def is_complete(self) -> bool:
        """Whether all shards are here."""
        return self._size >= self.expected

    def add(self, shard: Holding) -> "Shards":
        """A version with this shard added. The caller ensures that its number is not there yet."""
        shards = self if self._size and len(self._shared) == self._size else Shards(self)
        version = object.__new__(Shards)
        version._shared, version._places, version._size = shards._shared, shards._places, self._size + 1
        version._places[shard.shard] = self._size
        version._shared[shard.shard] = shard
        return version


class Checkpoint(msgspec.Struct, frozen=True):
    """The part of a (round, iteration) that is in the store."""

    shards: Shards = Shards()
    manifest: str = ""
    """Key of the manifest; empty until committed."""


class Stored(msgspec.Struct, frozen=True):
    """A committed checkpoint as its manifest describes it."""

    key: str
    """Key of the manifest."""
    shards: tuple[Holding, ...]
    """All shards."""
    is_certified: bool = False


class Doubt(msgspec.Struct, frozen=True):
    """A restored state after which the loss was not finite: it may be bad, and so may what was computed from it."""

    round: int
    iteration: int
    until: int
    """The round that restored it."""

    def covers(self, shard: Holding) -> bool:
        """Whether the shard is of that state, or of a later one up to the end of that round."""
        return (shard.round, shard.iteration) >= (self.round, self.iteration) and shard.round <= self.until


Checkpoints = dict[tuple[int, int], Checkpoint]


def with_shard(checkpoints: Checkpoints, shard: Holding) -> Checkpoints:
    """Add a persisted shard. The first of each number counts."""
    key = (shard.round, shard.iteration)
    before = checkpoints.get(key, Checkpoint())
    if shard.shard in before.shards:
        return checkpoints
    return _with_checkpoint(checkpoints, key, replace(before, shards=before.shards.add(shard)))


def with_manifest(checkpoints: Checkpoints, key: tuple[int, int], manifest: str) -> Checkpoints:
    """Mark a checkpoint as committed."""
    return _with_checkpoint(checkpoints, key, replace(checkpoints.get(key, Checkpoint()), manifest=manifest))


def with_survey(checkpoints: Checkpoints, surveyed: Iterable[Stored]) -> Checkpoints:
    """Add committed checkpoints found in the store. The store's manifests take precedence."""
    for checkpoint_in_store in surveyed:
        first = checkpoint_in_store.shards[0]
        checkpoints = _with_checkpoint(
            checkpoints,
            (first.round, first.iteration),
            Checkpoint(Shards(checkpoint_in_store.shards), checkpoint_in_store.key),
        )
    return checkpoints


def drop_refused(checkpoints: Checkpoints, refusals: Collection[Refusal]) -> Checkpoints:
    """The checkpoints without those that a refusal covers."""
    places = {(refusal.round, refusal.iteration) for refusal in refusals}

    def is_refused(checkpoint: Checkpoint) -> bool:
        return any(refusal.covers(shard) for shard in checkpoint.shards for refusal in refusals)

    return {
        place: checkpoint
        for place, checkpoint in checkpoints.items()
        if place not in places or not is_refused(checkpoint)
    }


def refusal_summary(refusals: Iterable[Refusal]) -> str:
    """Which checkpoints are skipped, and why, in one line."""
    why: dict[tuple[int, int], list[str]] = {}
    for refusal in refusals:
        why.setdefault((refusal.round, refusal.iteration), []).append(refusal.why)
    lines = [
        f"iteration {iteration} of round {round_} is skipped: {'; '.join(dict.fromkeys(reasons[:MAX_LISTED]))}"
        for (round_, iteration), reasons in sorted(why.items(), reverse=True)
    ]
    more = f"; and {len(lines) - MAX_LISTED} more" if len(lines) > MAX_LISTED else ""
    return "; ".join(lines[:MAX_LISTED]) + more


def _with_checkpoint(checkpoints: Checkpoints, key: tuple[int, int], checkpoint: Checkpoint) -> Checkpoints:
    every = {**checkpoints, key: checkpoint}
    keys = sorted(every)[-KEPT_CHECKPOINTS:]
    # Invariant: the newest committed checkpoint is kept, however many uncommitted ones follow it.
    keys += [newest for newest in sorted(k for k in every if every[k].manifest)[-1:] if newest not in keys]
    return {k: every[k] for k in keys}
