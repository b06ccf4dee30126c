"""Reads the workers' progress, from the beacons of scripts that use everstep and from every worker's board: the node's
iteration, its pace, and how long no worker has made progress."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.watch.board import Board
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.process_state import process_state

_WORKING_CORES = 0.05
"""CPU that a worker uses at least if it computes."""
_APART_S = 1.0
"""Seconds between two looks at a worker's CPU time, at least."""


class Progress(NamedTuple):
    """The iteration and phase of the node's slowest worker, and how long no worker has made progress."""

    iteration: int
    phase: str
    still_s: float
    """Seconds since any worker last made progress. A beacon's first value does not count, as what precedes the first
    iteration may take long: until a second value, seconds since the workers started."""
    moved: bool
    """Whether any worker has made progress in this round."""
    has_beacon: bool
    """Whether the script shows progress, now or in an earlier round. If not, progress is unknown."""
    pace_s: float = 0.0
    """The median of the newest iterations of the slowest worker, in seconds; 0: not known."""
    is_working: bool = False
    """The script shows no beacon of its own, some worker computes, and none waits for another rank."""


@dataclass(frozen=True)
class _CpuTime:
    seconds: float
    at: float
    is_used: bool


class ProgressMonitor:
    """Watches the workers of one node. Progress is noticed only when it is looked for."""

    def __init__(
        self,
        keeper: Keeper,
        slots: int,
        clock: Callable[[], float],
        known: bool,
        board: Callable[[int], Board | None] = lambda local_rank: None,
    ) -> None:
        """`known`: the script is known to show progress; `board`: the board of a local rank."""
        self._keeper = keeper
        self._slots = slots
        self._clock = clock
        self._known = known
        self._board = board
        self._first = self._before = self._changes()
        self._boards_before: list[tuple[int, int, int]] = []
        self._began_at = clock()
        self._moved_at: float | None = None
        self._is_running = False
        self._cpu: dict[int, _CpuTime] = {}

    def begin(self) -> None:
        """Begin a round. The beacons in memory are still those of the previous round's workers and do not count."""
        self._first = self._before = self._changes()
        self._boards_before, self._cpu = [], {}
        self._began_at, self._moved_at, self._is_running = self._clock(), None, True

    def end(self) -> None:
        """End the round: no worker runs."""
        self._is_running = False

    def iteration(self, local_rank: int) -> int:
        """The iteration that this worker has reached in this round."""
        return self._beacon(local_rank, self._board(local_rank))[0]

    def amend(self, local_rank: int, standing: Standing) -> Standing:
        """The standing with the iteration and phase that the script itself shows, if it does."""
        if not self._has_shown(local_rank):
            return standing
        iteration, phase = self._keeper.beacon(local_rank)
        return msgspec.structs.replace(standing, iteration=iteration, phase=phase)

    def observe(self) -> Progress:
        """Look at all workers."""
        if not self._is_running:
            return Progress(0, "", 0.0, False, self._known)
        changes, boards = self._changes(), [self._board(local_rank) for local_rank in range(self._slots)]
        self._known |= changes != self._first or any(board is not None and board.iteration > 0 for board in boards)
        # A worker's first value is not progress. A later one is, even if the beacon was not read in between.
        if any(now != before and now[0] > 1 for before, now in zip(self._before, changes, strict=True)):
            self._moved_at = self._clock()
        counts = [(board.changes, board.entered, board.completed) if board else (0, 0, 0) for board in boards]
        if counts != self._boards_before and any(board is not None and board.iteration > 0 for board in boards):
            self._moved_at = self._clock()
        self._before, self._boards_before = changes, counts
        since = self._began_at if self._moved_at is None else self._moved_at
        still_s, moved = round(self._clock() - since, 3), self._moved_at is not None
        slowest = min(self._beacon(rank, board) for rank, board in enumerate(boards))
        pace_s = max((board.pace_s for board in boards if board is not None), default=0.0)
        is_working = changes == self._first and self._is_working(boards)
        return Progress(*slowest, still_s, moved, self._known, round(pace_s, 6), is_working)

    def _is_working(self, boards: list[Board | None]) -> bool:
        used = [self._uses_cpu(rank, board) for rank, board in enumerate(boards) if board is not None]
        return any(used) and not any(board is not None and board.entered > board.completed for board in boards)

    def _uses_cpu(self, local_rank: int, board: Board) -> bool:
        last, now = self._cpu.get(local_rank), self._clock()
        if last is not None and now - last.at < _APART_S:
            return last.is_used
        state = process_state(board.pid)
        seconds = state.cpu_s if state is not None else 0.0
        is_used = last is not None and seconds - last.seconds > _WORKING_CORES * (now - last.at)
        self._cpu[local_rank] = _CpuTime(seconds, now, is_used)
        return is_used

    def _beacon(self, local_rank: int, board: Board | None) -> tuple[int, str]:
        if self._has_shown(local_rank):
            return self._keeper.beacon(local_rank)
        return (board.iteration, board.phase) if board is not None else (0, "")

    def _has_shown(self, local_rank: int) -> bool:
        return self._keeper.changes(local_rank) != self._first[local_rank]

    def _changes(self) -> list[tuple[int, float]]:
        return [self._keeper.changes(local_rank) for local_rank in range(self._slots)]
