"""What the runs of one folder share: locks (mutexes, semaphores) and memoized outputs, as small files beside them.

A holder of a lock is a file named after its run and node. It stays while the run is unfinished, even without a
launcher, as a workflow on Argo does; the launcher that finishes or resumes the run removes it.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from everstep.runtime.system import atomic
from everstep.runtime.system.file_lock import hold_lock
from everstep.runtime.workflow.engine.gates import GateResult, Lock, Memo

MAX_NAME_BYTES = 200
"""Bytes of a file's name without a hash and an ending; a file system takes 255. A longer one is cut and gets a hash."""


class SharedState:
    """The shared state of a runs folder, as one run uses it."""

    def __init__(self, runs: Path, run: str) -> None:
        self._folder = runs / ".shared"
        self._run = run

    def take_locks(self, node: str, locks: Iterable[Lock]) -> bool:
        """Take all of these locks for a node, or none. Returns whether they were taken."""
        with self._guard():
            places = [(self._folder / "locks" / _file_name(lock.name), lock.limit) for lock in locks]
            own = self._holder(node)
            for place, limit in places:
                place.mkdir(parents=True, exist_ok=True)
                if len([holder for holder in place.iterdir() if holder.name != own]) >= limit:
                    return False
            for place, _ in places:
                # The file's name may be cut, so the node's stands in it; it is renamed so that none is without it.
                fresh = self._folder / "holder"
                fresh.write_bytes(node.encode())
                fresh.replace(place / own)
        return True

    def lock_holders(self) -> set[str]:
        """Nodes of this run that hold a lock."""
        prefix = quote(f"{self._run}/", safe="")
        paths = [path for path in self._folder.glob("locks/*/*") if path.name.startswith(prefix)]
        # Earlier versions left the file empty.
        return {path.read_bytes().decode() or unquote(path.name.removeprefix(prefix)) for path in paths}

    def release_locks(self, node: str) -> None:
        """Release all locks of a node."""
        for path in self._folder.glob("locks/*/*"):
            if path.name == self._holder(node):
                path.unlink(missing_ok=True)

    def _holder(self, node: str) -> str:
        """The name of the file that says that a node of this run holds a lock."""
        return _file_name(f"{self._run}/{node}")

    def look_up(self, memo: Memo, now: float) -> GateResult:
        """What a cache has under the key, if it is young enough."""
        entry = self._read_cache(memo.cache).get(memo.key)
        if entry is None or (memo.max_age_s is not None and now - entry["created"] > memo.max_age_s):
            return GateResult()
        return GateResult(True, entry["parameters"], entry["artifacts"], entry["result"])

    def remember(self, cache: str, key: str, outputs: Mapping[str, Any], now: float) -> None:
        """Memoize the outputs of a node that succeeded."""
        with self._guard():
            cache_entries = self._read_cache(cache)
            cache_entries[key] = {"created": now, **outputs}
            place = self._cache_path(cache)
            place.parent.mkdir(parents=True, exist_ok=True)
            atomic.replace(place, json.dumps(cache_entries))

    def _cache_path(self, cache: str) -> Path:
        return self._folder / "memo" / f"{_file_name(cache)}.json"

    def _read_cache(self, cache: str) -> dict[str, Any]:
        try:
            return json.loads(self._cache_path(cache).read_text())
        except FileNotFoundError:
            return {}

    @contextmanager
    def _guard(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(self._folder / "guard", os.O_RDWR | os.O_CREAT):
            yield


def _file_name(name: str) -> str:
    """The name of a file for any text."""
    quoted = quote(name, safe="")
    if len(quoted) <= MAX_NAME_BYTES:
        return quoted
    return f"{quoted[:MAX_NAME_BYTES]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
