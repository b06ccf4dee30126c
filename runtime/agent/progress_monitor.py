"""What the workers' progress beacons show: how far the node is, and for how long nobody has moved."""

from collections.abc import Callable
from typing import NamedTuple

from everstep.runtime.protocol.keeper import Keeper


class Progress(NamedTuple):
    """The node's slowest worker, and how long all of them stood still."""

    iteration: int
    phase: str
    still_s: float
    """Seconds since any beacon moved; while none has moved since it first showed something (what comes before the
    first iteration may take long), since the workers were told to start."""
    moved: bool
    """Has any beacon moved in this round?"""
    has_beacon: bool
    """Is there one, or was there in an earlier round? Else nothing is known of movements."""


class ProgressMonitor:
    """Looks at the beacons of one node; a movement is seen when somebody looks."""

    def __init__(self, keeper: Keeper, slots: int, clock: Callable[[], float], known: bool) -> None:
        """`known`: the script is one that has beacons."""
        self._keeper = keeper
        self._slots = slots
        self._clock = clock
        self._known = known
        self._first = self._before = self._changes()
        self._began = clock()
        self._moved: float | None = None
        self._going = False

    def begin(self) -> None:
        """A round begins: its workers have shown nothing yet, though their memory has what the last ones did."""
        self._first = self._before = self._changes()
        self._began, self._moved, self._going = self._clock(), None, True

    def end(self) -> None:
        """No worker runs that could move."""
        self._going = False

    def iteration(self, local_rank: int) -> int:
        """How far that worker of this round is, or was."""
        return self._beacon(local_rank)[0]

    def observe(self) -> Progress:
        """The beacons now."""
        if not self._going:
            return Progress(0, "", 0.0, False, self._known)
        changes = self._changes()
        self._known |= changes != self._first
        # What a worker shows first is no movement. A later one counts also where nobody looked between the two.
        if any(now != before and now[0] > 1 for before, now in zip(self._before, changes, strict=True)):
            self._moved = self._clock()
        self._before = changes
        since = self._began if self._moved is None else self._moved
        still_s, moved = round(self._clock() - since, 3), self._moved is not None
        return Progress(*min(self._beacon(rank) for rank in range(self._slots)), still_s, moved, self._known)

    def _beacon(self, local_rank: int) -> tuple[int, str]:
        there = self._keeper.changes(local_rank) != self._first[local_rank]
        return self._keeper.beacon(local_rank) if there else (0, "")

    def _changes(self) -> list[tuple[int, float]]:
        return [self._keeper.changes(local_rank) for local_rank in range(self._slots)]
