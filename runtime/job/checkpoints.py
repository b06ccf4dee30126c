"""What the journal knows of checkpoints in the store: which shards of which (round, iteration) lie there, and which
are committed. Part of the state; functions over it."""

import msgspec
from msgspec.structs import replace

from runtime.job.messages import Holding

KEPT = 16
"""Persisted (round, iteration)s that are remembered, the newest of them, and the newest committed one."""


class Checkpoint(msgspec.Struct, frozen=True):
    """What of a (round, iteration) is in the store."""

    shards: tuple[Holding, ...] = ()
    manifest: str = ""
    """Key of the manifest; empty until committed."""


class Doubt(msgspec.Struct, frozen=True):
    """A state that may be broken, and so what was computed from it."""

    round: int
    iteration: int
    until: int
    """The round that began from it and found it so."""

    def meets(self, held: Holding) -> bool:
        """Is it that state, or one that was saved later, until the round was over?"""
        return (held.round, held.iteration) >= (self.round, self.iteration) and held.round <= self.until


Checkpoints = dict[tuple[int, int], Checkpoint]


def with_shard(known: Checkpoints, held: Holding) -> Checkpoints:
    """A shard was persisted; the first one of it counts."""
    key = (held.round, held.iteration)
    before = known.get(key, Checkpoint())
    if any(shard.shard == held.shard for shard in before.shards):
        return known
    return _remembering(known, key, replace(before, shards=(*before.shards, held)))


def with_manifest(known: Checkpoints, key: tuple[int, int], manifest: str) -> Checkpoints:
    """A checkpoint was committed."""
    return _remembering(known, key, replace(known.get(key, Checkpoint()), manifest=manifest))


def _remembering(known: Checkpoints, key: tuple[int, int], checkpoint: Checkpoint) -> Checkpoints:
    every = {**known, key: checkpoint}
    kept = sorted(every)[-KEPT:]
    # The newest committed one stays, however many unfinished ones follow it.
    kept += [newest for newest in sorted(k for k in every if every[k].manifest)[-1:] if newest not in kept]
    return {k: every[k] for k in kept}
