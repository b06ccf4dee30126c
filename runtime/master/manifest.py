"""The commit of a checkpoint: its manifest is written once, after every shard is complete in the store."""

from everstep.runtime import faults
from everstep.runtime.checkpoint.stored.keys import manifest_key
from everstep.runtime.checkpoint.stored.manifest import encode_manifest, make_commit
from everstep.runtime.job.brain import WriteManifest
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import NoSuchKey, Store


def write_manifest(store: Store, job: str, request: WriteManifest) -> str:
    """Commit the checkpoint; returns the manifest's key. A second commit changes nothing. Blocking."""
    key = manifest_key(job, (request.round, request.iteration))
    data = encode_manifest(make_commit(job, request.world_size, request.shards, request.is_certified))
    faults.point("master.before_manifest", iteration=request.iteration)
    store.create(key, data)
    faults.point("master.after_manifest", iteration=request.iteration)
    return key


def missing_shards(store: Store, request: WriteManifest) -> list[str]:
    """Keys of shards that are not complete in the store: objects of a checkpoint that a late shard completes may have
    been deleted as debris. Blocking."""
    return [shard.key for shard in request.shards if not _is_complete(store, shard)]


def _is_complete(store: Store, shard: Holding) -> bool:
    # One small read proves the size: of two bytes from the last one on, exactly one is there. A shorter object gives
    # none, a longer one two.
    try:
        return len(store.get(shard.key, shard.size - 1, 2)) == 1
    except NoSuchKey:
        return False
