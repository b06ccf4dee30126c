"""Reads the workers' progress, from the beacons of scripts that use everstep and from every worker's board: the node's
iteration, its pace, and how long no worker has made progress."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from everstep.runtime.job.liveness import LONG_PHASES
from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.watch.board_fields import EVALUATION, LOOP_PHASES, SAVE, Board
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.process_state import activity, process_state

_WORKING_CORES = 0.05
"""CPU that a worker uses at least if it computes."""
_APART_S = 1.0
"""Seconds between two looks at a worker's CPU time, at least."""
_IDLE_CORES, _IDLE_BYTES_PER_S = 0.02, 4096
"""A worker that uses less is blocked: one that polls torch's store uses half of it."""


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
    blocked_s: float = 0.0
    """Before the first progress: seconds since a worker, or a process that it started, last used CPU or disk."""
    awaits: bool = False
    """Some worker waits for other ranks."""


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
        is_restored: bool,
        board: Callable[[int], Board | None] = lambda local_rank: None,
    ) -> None:
        """`is_restored`: the script is known to show progress; `board`: the board of a local rank."""
        self._keeper = keeper
        self._slots = slots
        self._clock = clock
        self._known = is_restored
        self._board = board
        self._first = self._before = self._changes()
        self._boards_before: list[tuple[int, int, int]] = []
        self._began_at = clock()
        self._moved_at: float | None = None
        self._is_running = False
        self._cpu: dict[int, _CpuTime] = {}
        self._activity: tuple[float, float, int] | None = None
        """When it was looked at, CPU seconds, bytes of all workers."""
        self._active_at = clock()

    def begin(self) -> None:
        """Begin a round. The beacons in memory are still those of the previous round's workers and do not count."""
        self._first = self._before = self._changes()
        self._boards_before, self._cpu = [], {}
        self._began_at, self._moved_at, self._is_running = self._clock(), None, True
        self._activity, self._active_at = None, self._clock()

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
        return msgspec.structs.replace(standing, iteration=iteration, phase=standing.phase or phase)

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
        # Once there was progress, the end of a phase that took long is some, too.
        trains = self._moved_at is not None or any(board is not None and board.iteration > 0 for board in boards)
        if trains and counts != self._boards_before:
            self._moved_at = self._clock()
        self._before, self._boards_before = changes, counts
        since = self._began_at if self._moved_at is None else self._moved_at
        still_s, has_moved = round(self._clock() - since, 3), self._moved_at is not None
        beacons = [self._beacon(rank, board) for rank, board in enumerate(boards)]
        # While one evaluates or saves, the others wait for it: what they wait for says how long that may take.
        awaited = [
            beacon for beacon, board in zip(beacons, boards, strict=True) if board is None or not board.awaits_others
        ]
        some = awaited or beacons
        long_phases = [phase for _, phase in some if phase in LONG_PHASES]
        slowest = min(beacons)[0], min(long_phases, default=min(some)[1])
        pace_s = max((board.pace_s for board in boards if board is not None), default=0.0)
        is_working = changes == self._first and self._is_working(boards)
        blocked_s = 0.0 if has_moved else self._blocked_s(boards)
        awaits = any(board is not None and board.awaits_others for board in boards)
        return Progress(*slowest, still_s, has_moved, self._known, round(pace_s, 6), is_working, blocked_s, awaits)

    def _blocked_s(self, boards: list[Board | None]) -> float:
        """Seconds since a worker was last active. One without a board has not begun yet, and one that evaluates may be
        a server that waits for requests: both count as active. One that waits for others in a save does not: a save by
        all ranks may hang."""
        now = self._clock()
        if any(board is None or (board.phase in LONG_PHASES and not _saves_with_others(board)) for board in boards):
            self._activity, self._active_at = None, now
            return 0.0
        if self._activity is not None and now - self._activity[0] < _APART_S:
            return round(now - self._active_at, 3)
        looks = [activity(board.pid) for board in boards if board is not None]
        cpu_s, bytes_moved = sum(look[0] for look in looks), sum(look[1] for look in looks)
        before, self._activity = self._activity, (now, cpu_s, bytes_moved)
        elapsed_s = now - before[0] if before else 0.0
        is_idle = before is not None and cpu_s - before[1] <= max(_IDLE_CORES * len(looks) * elapsed_s, 0.011)
        if before is None or not is_idle or bytes_moved - before[2] > _IDLE_BYTES_PER_S * len(looks) * elapsed_s:
            self._active_at = now
        return round(now - self._active_at, 3)

    def _is_working(self, boards: list[Board | None]) -> bool:
        uses_cpu = [self._uses_cpu(rank, board) for rank, board in enumerate(boards) if board is not None]
        return any(uses_cpu) and not any(board is not None and board.awaits_others for board in boards)

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
        """What the script itself shows; a phase that may take long may be seen from outside alone, but what only looks
        like one is no other phase than the one that the script names."""
        if not self._has_shown(local_rank):
            return (board.number, board.phase) if board is not None else (0, "")
        iteration, phase = self._keeper.beacon(local_rank)
        if board is None or board.phase not in LONG_PHASES:
            return iteration, phase
        is_named = phase not in LOOP_PHASES and board.phase in (EVALUATION, SAVE)
        return iteration, phase if is_named else board.phase

    def _has_shown(self, local_rank: int) -> bool:
        return self._keeper.changes(local_rank) != self._first[local_rank]

    def _changes(self) -> list[tuple[int, float]]:
        return [self._keeper.changes(local_rank) for local_rank in range(self._slots)]


def _saves_with_others(board: Board) -> bool:
    return board.phase == SAVE and board.awaits_others
