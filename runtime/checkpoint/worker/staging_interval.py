"""Every how many iterations a state is staged, where staging each one would take more of the time than it may.

Decided by all ranks alike: what counts is the slowest rank's figure, by one small collective after 16, 32, 64...
iterations. Iterations are a power of two, as the cadence's are, so that a state that is due for the store is staged.
"""

import math
from collections.abc import Callable

FIRST_DECISION = 16
"""Saves before the first decision."""


class StagingInterval:
    """Seconds are the caller's; nothing here reads a clock."""

    def __init__(self, overhead: float, largest: Callable[[float], float] = float) -> None:
        """At most that share of the time for staging; 0: whatever it takes. `largest` gives every rank the largest of
        all ranks' numbers."""
        self.overhead, self._largest = overhead, largest
        self.every = 1
        self.why = ""
        """In one line; empty while each iteration is staged."""
        self._saves = self._staged = 0
        self._stalled = 0.0
        self._began: float | None = None
        self._decides_at = FIRST_DECISION

    def is_due(self, iteration: int) -> bool:
        """Is the state after this iteration staged?"""
        return iteration % self.every == 0

    def record_save(self, stall_s: float, staged: bool, now: float) -> bool:
        """A save is over, which staged or not; was something else decided? All ranks call it after the same saves."""
        if not self.overhead:
            return False
        if self._began is None:  # The first one meets page faults.
            self._began = now
            return False
        self._saves += 1
        self._staged += staged
        self._stalled += stall_s * staged
        if self._saves < self._decides_at:
            return False
        self._decides_at *= 2
        return self._decide(now - self._began)

    def _decide(self, elapsed: float) -> bool:
        cost = self._stalled / max(self._staged, 1)
        iteration = max((elapsed - self._stalled) / self._saves, 1e-9)
        wanted = self._largest(cost * (1 - self.overhead) / (self.overhead * iteration))
        every = 1 << math.ceil(math.log2(max(1.0, wanted)))
        self._saves = self._staged = 0
        self._stalled, self._began = 0.0, None
        changed, self.every = every != self.every, every
        if changed:
            self.why = (
                f"one of {every} iterations is staged: that holds training up by {cost:.3f} s of {iteration:.3f} s"
            )
            self.why = self.why if every > 1 else "each iteration is staged again"
        return changed
