"""Checkpoints of a plain `python script.py`, without agent and master: written by the process itself, then committed.

The same objects and manifest as an elastic job's, so that every reader reads both.
"""

import json
import time
from functools import partial
from typing import Any

from runtime.checkpoint.committed import MANIFEST, shards_of
from runtime.checkpoint.digests import seal
from runtime.checkpoint.errors import RestoreError
from runtime.checkpoint.fetch import read, shard_key
from runtime.checkpoint.layout import plan, state_capacity
from runtime.checkpoint.reshard import reshard
from runtime.checkpoint.stage import Stager
from runtime.checkpoint.tree import Tree
from runtime.store import Store


class Alone:
    """Keeps the checkpoints of `job` in `store`; writes one when `every_s` seconds have passed, and when asked."""

    def __init__(self, store: Store, job: str, every_s: float = 60.0) -> None:
        self._store, self._job, self._every_s = store, job, every_s
        manifests = self._manifests()
        self._round = int(manifests[-1].split("/")[-2].partition("-")[0]) + 1 if manifests else 1
        self._written = time.monotonic()
        self._iterations: set[int] = set()

    def load(self, state: dict[str, Any]) -> int:
        """Restore the newest committed checkpoint, whoever cut it, into `state`; its iteration, 0 when there is none.

        Raises RestoreError when its objects are gone or damaged, or of another model.
        """
        manifests = self._manifests()
        if not manifests:
            return 0
        shards = shards_of(manifests[-1].rpartition("/")[0], json.loads(self._store.get(manifests[-1])))
        try:
            return reshard(shards, state, 0, partial(read, store=self._store, token=""))
        except RestoreError as error:
            raise RestoreError(f"{manifests[-1]}: {error}") from None

    def save(self, iteration: int, tree: Tree, persist: bool = False) -> None:
        """Write and commit, if it is time. Blocks while it does. Raises StoreError."""
        if iteration in self._iterations or (not persist and time.monotonic() < self._written + self._every_s):
            return
        written: dict[str, Any] = {"iteration": iteration, "state": tree.json}
        layout = plan(tree.tensors, state_capacity(written), tree.pieces())
        data = memoryview(bytearray(layout.size))
        Stager(layout).stage(0, data, tree.tensors, written, iteration)
        digest = seal(data)
        key = shard_key(self._job, self._round, iteration, 0)
        self._store.put(key, data)
        shard = {"key": key, "shard": 0, "shards": 1, "size": layout.size, "digest": digest}
        told = {"version": 1, "job": self._job, "round": self._round, "iteration": iteration, "world_size": 1}
        self._store.create(
            f"{key.rpartition('/')[0]}/{MANIFEST}", json.dumps({**told, "objects": [shard]}, indent=1).encode()
        )
        self._iterations.add(iteration)
        self._written = time.monotonic()

    def _manifests(self) -> list[str]:
        found = self._store.list(f"jobs/{self._job}/checkpoints/")
        return [entry.key for entry in found if entry.key.endswith(f"/{MANIFEST}")]
