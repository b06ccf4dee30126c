"""What the workers' progress beacons show: how far the node is, and for how long nobody has moved."""

from collections.abc import Callable
from typing import NamedTuple

from runtime.agent.keeping import Keeper


class Progress(NamedTuple):
    """The node's slowest worker, and how long all of them stood still."""

    iteration: int
    phase: str
    still_s: float
    """Seconds since any beacon moved; 0 while none has moved since it first showed something (what comes before the
    first iteration may take long), and without beacons."""


class Beacons:
    """Looks at the beacons of one node; a movement is seen when somebody looks."""

    def __init__(self, keeper: Keeper, slots: int, clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._slots = slots
        self._clock = clock
        self._before: list[tuple[int, float]] = []
        self._moved: float | None = None
        self._going = False

    def begin(self) -> None:
        """A round begins: its workers have not moved yet."""
        self._before, self._moved, self._going = self._changes(), None, True

    def end(self) -> None:
        """No worker runs that could move."""
        self._going = False

    def look(self) -> Progress:
        """The beacons now."""
        if not self._going:
            return Progress(0, "", 0.0)
        changes = self._changes()
        # What a worker shows first is no movement. A later one counts also where nobody looked between the two.
        if any(now != before and now[0] > 1 for before, now in zip(self._before, changes, strict=True)):
            self._moved = self._clock()
        self._before = changes
        still_s = 0.0 if self._moved is None else round(self._clock() - self._moved, 3)
        return Progress(*min(self._keeper.beacon(rank) for rank in range(self._slots)), still_s)

    def _changes(self) -> list[tuple[int, float]]:
        return [self._keeper.changes(local_rank) for local_rank in range(self._slots)]
