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
        self._before: list[float] = []
        self._shown: set[int] = set()
        """Local ranks that have shown something in this round."""
        self._moved: float | None = None
        self._going = False

    def begin(self) -> None:
        """A round begins: its workers have not moved yet."""
        self._before, self._moved, self._going = self._times(), None, True
        self._shown.clear()

    def end(self) -> None:
        """No worker runs that could move."""
        self._going = False

    def look(self) -> Progress:
        """The beacons now."""
        if not self._going:
            return Progress(0, "", 0.0)
        times = self._times()
        for local_rank, (before, now) in enumerate(zip(self._before, times, strict=True)):
            if now != before and local_rank in self._shown:
                self._moved = self._clock()
            elif now != before:
                self._shown.add(local_rank)
        self._before = times
        still_s = 0.0 if self._moved is None else self._clock() - self._moved
        return Progress(*min(self._keeper.beacon(rank) for rank in range(self._slots)), still_s)

    def _times(self) -> list[float]:
        return [self._keeper.moved(local_rank) for local_rank in range(self._slots)]
