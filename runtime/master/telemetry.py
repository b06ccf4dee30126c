"""Telemetry: a lossy stream of metrics as JSON lines, one object in the store every few seconds.

`jobs/<job>/telemetry/<epoch>-<n>.jsonl`; each line has `v`, `time`, `node`. Agents resend to the next master what a
killed one had not written, so a line may be stored twice. No decision depends on telemetry. Of the objects older than
the newest UNPACKED_OBJECTS, OBJECTS_PER_PACK become one, thinned by `thin_lines`: a month leaves about a hundred.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.store import NoSuchKey, Store, StoreError
from everstep.runtime.watch.host_use import KIND as HOST
from everstep.runtime.watch.host_use import HostUses

VERSION = 1
UNPACKED_OBJECTS = 720
"""The newest objects, which are not packed: an hour's worth."""
OBJECTS_PER_PACK = 720
"""Older objects that are packed into one."""
FIRST_ITERATIONS = 20
"""Iterations at the start of a round that are kept one by one: they show what a restart cost."""
ITERATION_GROUPS = 360
"""Lines into which the later iterations of each round in a packed object are merged."""
OTHER_LINES = 1000
"""The newest lines of each other kind that are kept in a packed object."""
FIRST_FLUSH_S, LAST_FLUSH_S, FLUSH_SHARE = 0.5, 5.0, 1 / 12
"""Seconds between two objects: that share of the time since the first iteration, within these bounds. So the store
shows a training that has just begun, or that ends soon, with little delay, however long its nodes took to start."""
MAX_BUFFERED_LINES = 100_000
"""Lines kept while the store fails; beyond that the oldest are dropped."""

Line = Mapping[str, float | int | str]
_PACKED = "-packed.jsonl"
_log = logging.getLogger(__name__)


class LineFilter:
    """Knows which lines this master has had: an agent that gets no answer sends its lines again."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, int]] = {}
        """By node: the life of its agent, and the newest `n`."""

    def new_lines(self, beat: Heartbeat) -> tuple[Line, ...]:
        """The lines of a heartbeat that have not come before. An agent sends the next ones only after an answer."""
        life, newest = self._newest.get(beat.node, (beat.life, 0))
        if life != beat.life:
            newest = 0
        lines = tuple(line for line in beat.telemetry if _number(line) > newest or "n" not in line)
        self._newest[beat.node] = beat.life, max([newest, *map(_number, lines)])
        return lines


def _number(line: Line) -> int:
    number = line.get("n")
    return number if isinstance(number, int) else 0


class Telemetry:
    """Collects lines and writes them to the store every few seconds."""

    def __init__(self, store: Store, job: str, epoch: int, number: int = 0) -> None:
        """`number`: of the newest object that was stored in this epoch."""
        self._store, self._job = store, job
        self._prefix = f"jobs/{job}/telemetry/{epoch:06d}-"
        self._lines: list[Line] = []
        self._number = number
        self._reported: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._whole = OBJECTS_PER_PACK
        self._is_failing = False
        self._trains_since: float | None = None
        self.dropped = 0

    def add(self, node: str, lines: Iterable[Line], now: float) -> None:
        """Add lines that a node reported."""
        for line in lines:
            self._lines.append({"v": VERSION, "time": now, **line, "node": node})
            self._reported[node] = max(self._reported.get(node, 0), _number(line))
        if len(self._lines) > MAX_BUFFERED_LINES:
            self.dropped += len(self._lines) - MAX_BUFFERED_LINES
            self._lines = self._lines[-MAX_BUFFERED_LINES:]

    def newest_stored(self, node: str) -> int:
        """The newest `n` of the node's lines in the store; 0: none."""
        return self._stored.get(node, 0)

    async def run(self) -> None:
        """Flush periodically until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            age_s = now() - self._trains_since if self._trains_since is not None else 0.0
            await asyncio.sleep(flush_interval(age_s))
            if self._trains_since is None and any("iteration" in line for line in self._lines):
                self._trains_since = now()
            await self.flush()

    async def flush(self) -> None:
        """Write the collected lines. If the store fails, log that once and keep the lines for the next time."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        self._number += 1
        counts_reported = dict(self._reported)
        body = _encode_lines(lines)
        try:
            await asyncio.to_thread(self._store.put, f"{self._prefix}{self._number:09d}.jsonl", body)
        except StoreError as error:
            if not self._is_failing:
                _log.warning("telemetry was not stored and is kept for the next attempt: %s", error)
            self._is_failing, self._lines = True, lines + self._lines
        except asyncio.CancelledError:  # The job has ended; its write may not have begun. If it has, they come twice.
            self._lines = lines + self._lines
            raise
        else:
            self._is_failing = False
            self._stored = counts_reported
            self._whole += 1
            await self._pack()

    async def _pack(self) -> None:
        if self._whole < OBJECTS_PER_PACK:
            return
        self._whole = 0
        try:
            await asyncio.to_thread(pack, self._store, self._job)
        except (StoreError, NoSuchKey) as error:
            _log.warning("old telemetry was not packed, trying again later: %s", error)


def newest_number(store: Store, job: str, epoch: int) -> int:
    """The number of the newest object that was stored in that epoch; 0: none. Blocking. Raises StoreError."""
    prefix = f"jobs/{job}/telemetry/{epoch:06d}-"
    names = (entry.key.removeprefix(prefix) for entry in store.list(prefix))
    return max((int(name.partition("-")[0].partition(".")[0]) for name in names), default=0)


def flush_interval(age_s: float) -> float:
    """Seconds until the next object, of a training that this master has seen for so long."""
    return min(max(FLUSH_SHARE * age_s, FIRST_FLUSH_S), LAST_FLUSH_S)


def pack(store: Store, job: str) -> None:
    """Pack the oldest OBJECTS_PER_PACK unpacked objects into one, if there are UNPACKED_OBJECTS newer ones. Blocking.

    A concurrent reader may see a line twice, or miss a few. Raises StoreError, NoSuchKey.
    """
    folder = f"jobs/{job}/telemetry/"
    keys = [entry.key for entry in store.list(folder) if not entry.key.endswith(_PACKED)]
    old = keys[: max(len(keys) - UNPACKED_OBJECTS, 0)][:OBJECTS_PER_PACK]
    if len(old) < OBJECTS_PER_PACK:
        return
    lines: list[Line] = []
    for key in old:
        for text in store.get(key).splitlines():
            with suppress(ValueError):  # A torn line.
                lines.append(json.loads(text))
    store.put(old[0].removesuffix(".jsonl") + _PACKED, _encode_lines(thin_lines(lines)))
    for key in old:
        store.delete(key)


def thin_lines(lines: Iterable[Line]) -> list[Line]:
    """The old lines that a report needs: rank 0's iterations, merged into groups after the FIRST_ITERATIONS of a round,
    what each node used in one line, and the newest OTHER_LINES of each other kind. A group keeps its last line, with
    the seconds and tokens of all, and says how many `iterations` it is."""
    by_kind: dict[str, list[Line]] = {}
    hosts = HostUses()
    rounds: dict[int, dict[int, dict[str, Any]]] = {}
    for line in lines:
        number, iteration, kind = line.get("round"), line.get("iteration"), line.get("kind")
        if kind == HOST:
            hosts.add(line)
        elif kind not in (None, "iteration") or not isinstance(iteration, int):
            by_kind.setdefault(str(kind), []).append(line)
        elif not line.get("rank"):
            rounds.setdefault(number if isinstance(number, int) else 0, {})[iteration] = dict(line)
    others: list[Line] = [*hosts.merged(), *(line for some in by_kind.values() for line in some[-OTHER_LINES:])]
    for by_iteration in rounds.values():
        lines_in_order = [by_iteration[iteration] for iteration in sorted(by_iteration)]
        others += lines_in_order[:FIRST_ITERATIONS]
        size = max(-(-(len(lines_in_order) - FIRST_ITERATIONS) // ITERATION_GROUPS), 1)
        others += [
            _merge_lines(lines_in_order[at : at + size]) for at in range(FIRST_ITERATIONS, len(lines_in_order), size)
        ]
    return others


def _merge_lines(some: list[dict[str, Any]]) -> Line:
    sums = {
        key: sum(line[key] for line in some if isinstance(line.get(key), int | float))
        for key in ("seconds", "stall_s", "evaluation_s", "copy_s", "staged_bytes", "tokens")
        if key in some[-1]
    }
    return {**some[-1], **sums, "iterations": sum(count_iterations(line) for line in some)}


def count_iterations(line: Line) -> int:
    """How many iterations a line tells of: the newest is its `iteration`, its seconds and tokens are of all."""
    count = line.get("iterations")
    return count if isinstance(count, int) and count > 0 else 1


def _encode_lines(lines: Iterable[Line]) -> bytes:
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
