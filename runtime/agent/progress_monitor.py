"""Reads the workers' progress beacons: the node's iteration, and how long no worker has made progress."""

from collections.abc import Callable
from typing import NamedTuple

from everstep.runtime.protocol.keeper import Keeper


class Progress(NamedTuple):
    """The iteration and phase of the node's slowest worker, and how long no worker has made progress."""

    iteration: int
    phase: str
    still_s: float
    """Seconds since any beacon last changed. A beacon's first value does not count, as what precedes the first
    iteration may take long: until a second value, seconds since the workers started."""
    moved: bool
    """Whether any worker has made progress in this round."""
    has_beacon: bool
    """Whether the script shows a beacon, now or in an earlier round. If not, progress is unknown."""


class ProgressMonitor:
    """Watches the beacons of one node. Progress is noticed only when they are read."""

    def __init__(self, keeper: Keeper, slots: int, clock: Callable[[], float], known: bool) -> None:
        """`known`: the script is known to have beacons."""
        self._keeper = keeper
        self._slots = slots
        self._clock = clock
        self._known = known
        self._first = self._before = self._changes()
        self._began_at = clock()
        self._moved_at: float | None = None
        self._is_running = False

    def begin(self) -> None:
        """Begin a round. The beacons in memory are still those of the previous round's workers and do not count."""
        self._first = self._before = self._changes()
        self._began_at, self._moved_at, self._is_running = self._clock(), None, True

    def end(self) -> None:
        """End the round: no worker runs."""
        self._is_running = False

    def iteration(self, local_rank: int) -> int:
        """The iteration that this worker has reached in this round."""
        return self._beacon(local_rank)[0]

    def observe(self) -> Progress:
        """Read the beacons."""
        if not self._is_running:
            return Progress(0, "", 0.0, False, self._known)
        changes = self._changes()
        self._known |= changes != self._first
        # A worker's first value is not progress. A later one is, even if the beacon was not read in between.
        if any(now != before and now[0] > 1 for before, now in zip(self._before, changes, strict=True)):
            self._moved_at = self._clock()
        self._before = changes
        since = self._began_at if self._moved_at is None else self._moved_at
        still_s, moved = round(self._clock() - since, 3), self._moved_at is not None
        return Progress(*min(self._beacon(rank) for rank in range(self._slots)), still_s, moved, self._known)

    def _beacon(self, local_rank: int) -> tuple[int, str]:
        there = self._keeper.changes(local_rank) != self._first[local_rank]
        return self._keeper.beacon(local_rank) if there else (0, "")

    def _changes(self) -> list[tuple[int, float]]:
        return [self._keeper.changes(local_rank) for local_rank in range(self._slots)]
