"""Telemetry: a lossy stream of metrics as JSON lines, one object of the store every few seconds.

`jobs/<job>/telemetry/<epoch>-<n>.jsonl`; each line has `v`, `time`, `node`. What a killed master had not yet put its
agents tell the next one; a line may then lie there twice. Nothing is decided by it. Of what is older than the newest
WHOLE objects, PACKED become one with at most `thinned`'s lines: a month leaves some hundred of them.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from everstep.runtime.store import NoSuchKey, Store, StoreError

VERSION = 1
UNPACKED_OBJECTS = 720
"""Newest objects that stay as they were written: an hour of them."""
OBJECTS_PER_PACK = 720
"""Older objects that become one."""
FIRST_ITERATIONS = 20
"""Iterations of a round that are kept one by one: what a restart cost is read off them."""
ITERATION_GROUPS = 360
"""Lines that all later iterations in one packed object become, for each of its rounds."""
OTHER_LINES = 1000
"""Other lines in one packed object, the newest."""
MAX_BUFFERED_LINES = 100_000
"""Lines kept while the store does not take them; then the oldest are dropped."""

Line = Mapping[str, float | int | str]
_PACKED = "-packed.jsonl"
_log = logging.getLogger(__name__)


class Telemetry:
    """Collects lines and puts them in the store every `every_s`."""

    def __init__(self, store: Store, job: str, epoch: int, every_s: float = 5.0) -> None:
        self._store, self._job = store, job
        self._prefix = f"jobs/{job}/telemetry/{epoch:06d}-"
        self._every_s = every_s
        self._lines: list[Line] = []
        self._number = 0
        self._told: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._whole = OBJECTS_PER_PACK
        self.dropped = 0

    def add(self, node: str, lines: Iterable[Line], now: float) -> None:
        """Take lines that a node reported."""
        for line in lines:
            self._lines.append({"v": VERSION, "time": now, **line, "node": node})
            number = line.get("n")
            self._told[node] = max(self._told.get(node, 0), number if isinstance(number, int) else 0)
        if len(self._lines) > MAX_BUFFERED_LINES:
            self.dropped += len(self._lines) - MAX_BUFFERED_LINES
            self._lines = self._lines[-MAX_BUFFERED_LINES:]

    def newest_stored(self, node: str) -> int:
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
        body = _encode_lines(lines)
        try:
            await asyncio.to_thread(self._store.put, f"{self._prefix}{self._number:06d}.jsonl", body)
        except StoreError as error:
            _log.warning("telemetry was not stored, it is kept for the next time: %s", error)
            self._lines = lines + self._lines
        else:
            self._stored = told
            self._whole += 1
            await self._pack()

    async def _pack(self) -> None:
        if self._whole < OBJECTS_PER_PACK:
            return
        self._whole = 0
        try:
            await asyncio.to_thread(pack, self._store, self._job)
        except (StoreError, NoSuchKey) as error:
            _log.warning("old telemetry stays as it is until the next time: %s", error)


def pack(store: Store, job: str) -> None:
    """Make one object of the oldest PACKED ones that no packing has made, if WHOLE newer ones are there. Blocking.

    A reader in this moment may find a line in both, or a few less. Raises StoreError, NoSuchKey.
    """
    folder = f"jobs/{job}/telemetry/"
    keys = [entry.key for entry in store.list(folder) if not entry.key.endswith(_PACKED)]
    old = keys[: max(len(keys) - UNPACKED_OBJECTS, 0)][:OBJECTS_PER_PACK]
    if len(old) < OBJECTS_PER_PACK:
        return
    lines: list[Line] = []
    for key in old:
        for text in store.get(key).splitlines():
            with suppress(ValueError):  # Torn: nobody could read it.
                lines.append(json.loads(text))
    store.put(old[0].removesuffix(".jsonl") + _PACKED, _encode_lines(thin_lines(lines)))
    for key in old:
        store.delete(key)


def thin_lines(lines: Iterable[Line]) -> list[Line]:
    """What a report needs of old lines: rank 0's iterations, those of a round after its FIRST in groups, and OTHERS of
    what is told otherwise. A group's line is its last one, with the seconds and tokens of all of them."""
    others: list[Line] = []
    rounds: dict[int, dict[int, dict[str, Any]]] = {}
    for line in lines:
        number, iteration = line.get("round"), line.get("iteration")
        if line.get("kind") not in (None, "iteration") or not isinstance(iteration, int):
            others.append(line)
        elif not line.get("rank"):
            rounds.setdefault(number if isinstance(number, int) else 0, {})[iteration] = dict(line)
    del others[:-OTHER_LINES]
    for found in rounds.values():
        told = [found[iteration] for iteration in sorted(found)]
        others += told[:FIRST_ITERATIONS]
        size = max(-(-(len(told) - FIRST_ITERATIONS) // ITERATION_GROUPS), 1)
        others += [_merge_lines(told[at : at + size]) for at in range(FIRST_ITERATIONS, len(told), size)]
    return others


def _merge_lines(some: list[dict[str, Any]]) -> Line:
    sums = {
        key: sum(line[key] for line in some if isinstance(line.get(key), int | float))
        for key in ("seconds", "stall_s", "tokens")
        if key in some[-1]
    }
    return {**some[-1], **sums}


def _encode_lines(lines: Iterable[Line]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
