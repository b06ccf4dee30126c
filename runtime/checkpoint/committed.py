"""Committed checkpoints in a store: what their manifests name, read whole."""

from functools import partial
from typing import Any

from runtime.checkpoint.fetch import read
from runtime.checkpoint.reshard import read_whole
from runtime.job.messages import Holding
from runtime.store import Store


def shards_of(folder: str, manifest: dict[str, Any]) -> tuple[Holding, ...]:
    """What the manifest of the checkpoint in `folder` ("": the store itself) names.

    Its objects stand beside it, wherever it was copied.
    """
    before = f"{folder}/" if folder else ""
    return tuple(
        Holding(
            manifest["round"],
            manifest["iteration"],
            shard=entry["shard"],
            shards=entry["shards"],
            size=entry["size"],
            key=before + entry["key"].rpartition("/")[2],
            digest=entry["digest"],
        )
        for entry in manifest["objects"]
    )


def read_committed(store: Store, folder: str, manifest: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The whole state, as nested dicts, and its iteration. Raises RestoreError: objects are gone or damaged."""
    return read_whole(shards_of(folder, manifest), partial(read, store=store, token=""))
