"""The staging interval: how many iterations pass between two staged states when staging each would exceed its share.

All ranks decide alike: the slowest rank's figure counts, by one small collective after 16, 32, 64... iterations. The
interval is a power of two, as the persist interval is, so that every state due for the store is staged.
"""

import math
from collections.abc import Callable

FIRST_DECISION = 16
"""Saves before the first decision."""


class StagingInterval:
    """The caller supplies times in seconds; nothing here reads a clock."""

    def __init__(self, overhead: float, largest: Callable[[float], float] = float) -> None:
        """`overhead` is the largest share of the time for staging; 0: no limit. `largest` is the maximum over all
        ranks."""
        self.overhead, self._largest = overhead, largest
        self.every = 1
        self.why = ""
        """The reason in one line; empty while each iteration is staged."""
        self._saves = self._typical = 0
        """Since the last decision: all, and the typical ones that staged."""
        self._stalled = self._typical_s = 0.0
        """What these took."""
        self._cost = 0.0
        """What a typical one took when there were such, in seconds."""
        self._began: float | None = None
        self._decides_at = FIRST_DECISION

    def is_due(self, iteration: int) -> bool:
        """Is the state after this iteration staged?"""
        return iteration % self.every == 0

    def record_save(self, stall_s: float, is_staged: bool, now: float, is_typical: bool = True) -> bool:
        """Record a save that did or did not stage. One that is not typical, as later ones will take less, does not
        count as what staging costs. Returns True if the interval changed. All ranks must call it after the same
        saves."""
        if not self.overhead:
            return False
        if self._began is None:  # The first save is not typical: it meets page faults.
            self._began = now
            return False
        self._saves += 1
        self._stalled += stall_s * is_staged
        if is_staged and is_typical:
            self._typical += 1
            self._typical_s += stall_s
        if self._saves < self._decides_at:
            return False
        self._decides_at *= 2
        return self._decide(now - self._began)

    def _decide(self, elapsed: float) -> bool:
        if self._typical:
            self._cost = self._typical_s / self._typical
        iteration = max((elapsed - self._stalled) / self._saves, 1e-9)
        needed_interval = self._largest(self._cost * (1 - self.overhead) / (self.overhead * iteration))
        every = 1 << math.ceil(math.log2(max(1.0, needed_interval)))
        self._saves = self._typical = 0
        self._stalled = self._typical_s = 0.0
        self._began = None
        has_changed, self.every = every != self.every, every
        if has_changed:
            why = f"staging one takes {self._cost:.3f} s, an iteration {iteration:.3f} s"
            self.why = f"one in {every} iterations is staged: {why}"
            self.why = self.why if every > 1 else "each iteration is staged again"
        return has_changed
