"""Sends telemetry to the master in batches."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from everstep.runtime.agent.client import MasterClient, NotUnderstood
from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.progress_monitor import Progress
from everstep.runtime.agent.shown_iterations import ShownIteration
from everstep.runtime.protocol.messages import Directive, Heartbeat
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import Fetched, Report

Line = dict[str, float | int | str]
SEND_INTERVAL_S = 0.5
_MOST_LINES = 20_000
"""Lines kept until the master has stored them. Beyond that the oldest are dropped: telemetry may be lost."""
_BATCH = 500


@dataclass
class _PendingLine:
    """A line that may not be in the store yet."""

    number: int
    line: Line
    sent_to_epoch: int = -1
    """The epoch of the master that received the line; -1: none."""


class TelemetrySender:
    """Sends the telemetry of workers and keeper."""

    def __init__(
        self,
        client: MasterClient,
        dialogue: MasterDialogue,
        say: Callable[[str], None],
        on_directive: Callable[[Directive | None], None],
        look: Callable[[], Progress],
        silent: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`look` reads the beacons, so that telemetry sent late does not look like progress. `silent` gives the fields
        of a heartbeat that say who is silent: without them it would take that back."""
        self._client = client
        self._dialogue = dialogue
        self._node = dialogue.node
        self._say = say
        self._on_directive = on_directive
        self._look = look
        self._silent = silent
        self._interval = (0, "")
        self._pending: deque[_PendingLine] = deque(maxlen=_MOST_LINES)
        self._number = int(time.time() * 1000)  # Rises across the agents of a node, too.
        self._has_lines = asyncio.Event()
        self._sending = asyncio.Lock()

    def add(self, line: Mapping[str, float | int | str], at: float | None = None) -> None:
        """Queue a line of telemetry; version, number, time (`at`, else now) and node are added."""
        self._number += 1
        facts = {"v": 1, "n": self._number, "time": round(at or time.time(), 4), "node": self._node}
        self._pending.append(_PendingLine(self._number, {**line, **facts}))
        self._has_lines.set()

    def acknowledge(self, directive: Directive | None) -> None:
        """Drop the lines that the master has stored; wake the sender if a new master lacks some."""
        if directive is None:
            return
        while (
            self._pending
            and self._pending[0].number <= directive.stored
            and self._pending[0].sent_to_epoch == directive.epoch
        ):
            self._pending.popleft()
        if self._unsent():
            self._has_lines.set()

    def _unsent(self) -> list[_PendingLine]:
        """The first lines that the current master has not received."""
        return list(
            islice((pending for pending in self._pending if pending.sent_to_epoch != self._client.epoch), _BATCH)
        )

    def add_iteration(self, seat: Seat, local_rank: int, report: Report) -> None:
        """Queue a worker's report of an iteration."""
        place = {"round": seat.round, "iteration": report.iteration, "rank": seat.first_rank + local_rank}
        self.add({**report.values, **place})

    def add_shown(self, shown: ShownIteration) -> None:
        """Queue an iteration that rank 0's board shows, or several."""
        place = {"round": shown.round, "iteration": shown.iteration, "rank": 0}
        if shown.count > 1:
            place["iterations"] = shown.count
        times = {"seconds": shown.seconds, "stall_s": shown.stall_s, "evaluation_s": shown.evaluation_s}
        self.add({**{name: round(seconds, 4) for name, seconds in times.items()}, **place}, shown.ended_at)

    def add_interval(self, seat: Seat, iteration: int, every: int, reason: str) -> None:
        """Queue the persist interval (iterations) of the node that persists, whenever it changes."""
        if seat.persists and every and (every, reason) != self._interval:
            self._interval = every, reason
            self._say(f"to the store {reason}")
            self.add(
                {"kind": "interval", "round": seat.round, "iteration": iteration, "every": every, "reason": reason}
            )

    def add_restored(self, seat: Seat, local_rank: int, place_fetched: Fetched, seconds: float) -> None:
        """Queue that a worker has restored its state, `seconds` after the node got its seat."""
        self.add(
            {
                "kind": "restored", "round": seat.round, "iteration": place_fetched.iteration,
                "tier": place_fetched.tier or "", "source": place_fetched.source,
                "rank": seat.first_rank + local_rank, "from_round": place_fetched.round, "seconds": round(seconds, 4),
                **({"why": place_fetched.why} if place_fetched.why else {}),
            }
        )  # fmt: skip

    async def run(self) -> None:
        """Send telemetry as it comes, at most twice a second, until cancelled; nothing before the node has joined, as
        the master refuses what it does not know."""
        while True:
            await self._has_lines.wait()
            if self._dialogue.is_known:
                await self.flush()
            await asyncio.sleep(SEND_INTERVAL_S)

    async def flush(self) -> None:
        """Send until the current master has received all lines."""
        async with self._sending:
            self._has_lines.clear()
            while batch := self._unsent():
                lines = tuple(pending.line for pending in batch)
                directive = None
                try:
                    directive = await self._client.send_heartbeat(partial(self._next_heartbeat, lines))
                except NotUnderstood as error:
                    self._say(f"{len(batch)} lines of telemetry were refused: {error}")
                for pending in batch:
                    pending.sent_to_epoch = self._client.epoch
                self._on_directive(directive)

    def _next_heartbeat(self, lines: Sequence[Line]) -> Heartbeat:
        progress = self._look()
        iterations = (int(line.get("iteration", 0)) for line in lines if line.get("round") == self._dialogue.round)
        progress = progress._replace(iteration=max(progress.iteration, *iterations, 0))
        return self._dialogue.next_heartbeat(telemetry=lines, **progress._asdict(), **self._silent())
