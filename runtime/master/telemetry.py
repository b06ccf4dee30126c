"""Telemetry: a lossy stream of metrics as JSON lines, one object of the store every few seconds.

`jobs/<job>/telemetry/<epoch>-<n>.jsonl`; each line has `v`, `time`, `node`. What a killed master had not yet put its
agents tell the next one; a line may then lie there twice. Nothing is decided by it.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping

from runtime.store import Store, StoreError

VERSION = 1
LIMIT = 100_000
"""Lines kept while the store does not take them; then the oldest are dropped."""

Line = Mapping[str, float | int | str]
_log = logging.getLogger(__name__)


class Telemetry:
    """Collects lines and puts them in the store every `every_s`."""

    def __init__(self, store: Store, job: str, epoch: int, every_s: float = 5.0) -> None:
        self._store = store
        self._prefix = f"jobs/{job}/telemetry/{epoch:06d}-"
        self._every_s = every_s
        self._lines: list[Line] = []
        self._number = 0
        self._told: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self.dropped = 0

    def add(self, node: str, lines: Iterable[Line], now: float) -> None:
        """Take lines that a node reported."""
        for line in lines:
            self._lines.append({"v": VERSION, "time": now, **line, "node": node})
            number = line.get("n")
            self._told[node] = max(self._told.get(node, 0), number if isinstance(number, int) else 0)
        if len(self._lines) > LIMIT:
            self.dropped += len(self._lines) - LIMIT
            self._lines = self._lines[-LIMIT:]

    def stored(self, node: str) -> int:
        """The newest `n` of the node's lines that lies in the store; 0 for none."""
        return self._stored.get(node, 0)

    async def run(self) -> None:
        """Put what came, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.flush()

    async def flush(self) -> None:
        """Put what came. A store that refuses is reported; the lines are kept for the next time."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        self._number += 1
        told = dict(self._told)
        body = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            await asyncio.to_thread(self._store.put, f"{self._prefix}{self._number:06d}.jsonl", body)
        except StoreError as error:
            _log.warning("telemetry was not stored, it is kept for the next time: %s", error)
            self._lines = lines + self._lines
        else:
            self._stored = told
