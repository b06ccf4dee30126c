"""What the workers' progress beacons show: how far the node is, and for how long nobody has moved."""

from collections.abc import Callable
from typing import NamedTuple

from runtime.agent.keeping import Keeper


class Progress(NamedTuple):
    """The node's slowest worker, and how long all of them stood still."""

    iteration: int
    phase: str
    still_s: float
    """Seconds since any beacon moved; 0 before the first movement of a round, and without beacons."""


class Beacons:
    """Looks at the beacons of one node; a movement is seen when somebody looks."""

    def __init__(self, keeper: Keeper, slots: int, clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._slots = slots
        self._clock = clock
        self._before: list[tuple[int, str]] | None = None
        self._moved: float | None = None
        self._going = False

    def begin(self) -> None:
        """A round begins: its workers have not moved yet."""
        self._going, self._before, self._moved = True, None, None

    def end(self) -> None:
        """No worker runs that could move."""
        self._going = False

    def look(self) -> Progress:
        """The beacons now."""
        if not self._going:
            return Progress(0, "", 0.0)
        seen = [self._keeper.beacon(local_rank) for local_rank in range(self._slots)]
        if self._before is not None and seen != self._before:
            self._moved = self._clock()
        self._before = seen
        still_s = 0.0 if self._moved is None else self._clock() - self._moved
        return Progress(*min(seen), still_s)
