"""The commit of a checkpoint: `manifest.json`, made once, when every shard lies whole in the store."""

import json

from runtime import faults
from runtime.job.brain import WriteManifest
from runtime.job.messages import Holding
from runtime.store import NoSuchKey, Store


def checkpoint_key(job: str, round_: int, iteration: int) -> str:
    """The prefix of a checkpoint; the newest sorts last."""
    return f"jobs/{job}/checkpoints/{round_:06d}-{iteration:09d}"


def commit(store: Store, job: str, asked: WriteManifest) -> str:
    """Make the checkpoint visible; returns the manifest's key. A second commit changes nothing. Blocking."""
    key = f"{checkpoint_key(job, asked.round, asked.iteration)}/manifest.json"
    told = {
        "version": 1,
        "job": job,
        "round": asked.round,
        "iteration": asked.iteration,
        "world_size": asked.world_size,
        "objects": [
            {"key": shard.key, "shard": shard.shard, "shards": shard.shards, "size": shard.size, "digest": shard.digest}
            for shard in asked.shards
        ],
    }
    faults.point("master.before_manifest", iteration=asked.iteration)
    store.create(key, json.dumps(told, indent=1).encode())
    faults.point("master.after_manifest", iteration=asked.iteration)
    return key


def missing(store: Store, asked: WriteManifest) -> list[str]:
    """Keys of shards that do not lie in the store, whole: what a late shard completes may have been taken for debris.
    Blocking."""
    return [shard.key for shard in asked.shards if not _whole(store, shard)]


def _whole(store: Store, shard: Holding) -> bool:
    try:
        return len(store.get(shard.key, shard.size - 1, 2)) == 1
    except NoSuchKey:
        return False
