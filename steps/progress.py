"""A step's progress for a person: plain lines on stderr, at most two a second."""

import sys
import time
from dataclasses import dataclass


@dataclass
class Progress:
    """Prints lines, except those that come too soon after the last one."""

    interval_s: float = 0.5
    _next: float = 0.0

    def say(self, line: str) -> None:
        """Print the line if the last one is old enough."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.interval_s
            print(line, file=sys.stderr, flush=True)
