"""Keeps a node's warm spares (see `spares`): beside its workers, and instead of them while the node has no seat.

A node that waits for a seat keeps a spare for each of its workers that has not survived the last round: when it takes a
lost node's place, or the job grows, its workers have imported, built and compiled everything. A node that comes while a
round trains joins when it is warm, as its join ends the round.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.spares import Spares
from everstep.runtime.agent.worker_specs import spare_spec
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.training import Training

WARM_UP_S = 300.0
"""A node joins after so many seconds, even if its spares are not warm."""
_LOOK_EVERY_S = 0.25
_ASK_EVERY_S = 1.0
_AFTER_FAILURE_S = 60.0
"""Between the end of a spare that could not rehearse, and the next one."""


class StartsSpares(Protocol):
    """What a `SpareKeeper` needs of the node's workers."""

    spares: Spares

    def start_spare(
        self, local_rank: int, environment: Mapping[str, str], command: Sequence[str], cpus: Sequence[int]
    ) -> None:
        """Start one."""
        ...

    def unseated_ranks(self) -> Collection[int]:
        """The local ranks whose workers have survived the last round, and wait for a seat."""
        ...


class SpareKeeper:
    """Starts one node's spares, one after the other."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        workers: StartsSpares,
        ask: Callable[[], Awaitable[Training]],
        seat: Callable[[], Seat | None],
        trains: Callable[[Seat], bool],
        reserve: Callable[[int], Awaitable[object]],
    ) -> None:
        """`folder`: the agent's private one. `ask` asks the master what runs without this node; `seat` is the node's
        own, and `trains` whether the round of that seat has done an iteration that can be rehearsed. `reserve`
        allocates slots of so many bytes for a state."""
        self._settings, self._folder, self._workers = settings, folder, workers
        self._ask, self._seat, self._trains, self._reserve = ask, seat, trains, reserve
        self._has_reserved = False
        self._clock = asyncio.get_running_loop().time
        self._ask_at = 0.0

    async def warm_up(self) -> None:
        """Before the node's first join: wait until it is warm, if a round trains meanwhile and its workers can be
        spares."""
        until, spares = self._clock() + WARM_UP_S, self._workers.spares
        while self._clock() < until and spares.warm < self._settings.slots and spares.failed_at is None:
            training = await self._ask()
            if not training.round or (training.trains and not training.survives):
                return
            if training.trains:
                self._start_missing(self._settings.slots, _next_seat(training, self._settings))
            await asyncio.sleep(_LOOK_EVERY_S)
        await self._reserve_memory()

    async def run(self) -> None:
        """Start missing spares. Beside the first iteration of a round they would delay it, and compile what it
        compiles. Runs for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if (seat := self._seat()) is None:
                await self._look_without_seat()
            elif self._trains(seat):
                self._start_missing(self._settings.spares, seat)

    async def _look_without_seat(self) -> None:
        """Between two rounds no round runs: then nothing is started."""
        spares = self._workers.spares
        if spares.warm:
            await self._reserve_memory()
        if len(spares.numbers()) >= self._unheld_seats() or self._clock() < self._ask_at:
            return
        self._ask_at = self._clock() + _ASK_EVERY_S
        training = await self._ask()
        if training.trains and training.survives and self._seat() is None:
            self._start_missing(self._unheld_seats(), _next_seat(training, self._settings))

    def _unheld_seats(self) -> int:
        """How many seats of this node no worker waits for: what has survived the last round takes its seat again."""
        return self._settings.slots - len(self._workers.unseated_ranks())

    async def _reserve_memory(self) -> None:
        """Allocate memory for the state that a peer will send: others would wait for that after the join."""
        if (size := self._workers.spares.state_bytes) and not self._has_reserved:
            self._has_reserved = True
            with suppress(RuntimeError, OSError):  # There is no room: the worker is told when it asks.
                await self._reserve(size)

    def _start_missing(self, count: int, seat: Seat) -> None:
        spares = self._workers.spares
        has_failed = spares.failed_at is not None and self._clock() < spares.failed_at + _AFTER_FAILURE_S
        if not spares.rehearses and len(spares.numbers()) < count and not has_failed:
            self._workers.start_spare(*spare_spec(self._settings, seat, self._folder, self._next_local_rank()))

    def _next_local_rank(self) -> int:
        """The part that the fewest spares rehearse, of those that no worker waits to take again."""
        held, rehearsed = self._workers.unseated_ranks(), self._workers.spares.local_ranks()
        return min((rank for rank in range(self._settings.slots) if rank not in held), key=rehearsed.count)


def _next_seat(training: Training, settings: Settings) -> Seat:
    """A seat as this node would get it, were it the last of the round that runs: for the shapes in a rehearsal."""
    return Seat(
        epoch=0, round=training.round, role=settings.role,
        group_rank=training.nodes - 1, group_world_size=training.nodes,
        first_rank=max(training.workers - settings.slots, 0), world_size=max(training.workers, settings.slots),
        role_first_rank=max(training.role_workers - settings.slots, 0), role_world_size=training.role_workers,
        master_addr="", master_port=0, restart_count=0, restore=None, persists=False,
    )  # fmt: skip
