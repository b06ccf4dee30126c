"""A step's progress: plain lines on stderr for a person, at most two a second, and `N/M` for Argo."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.runtime.system import atomic

ARGO_FILE = "ARGO_PROGRESS_FILE"
"""Argo reads `N/M` from the file of that name and shows it (Argo Workflows, "Progress")."""


def write_for_argo(count: int, total: int, environment: Mapping[str, str]) -> None:
    """Say how much is done of how much, if this is a step of Argo's."""
    if (file := environment.get(ARGO_FILE)) and total:
        atomic.replace(Path(file), f"{min(count, total)}/{total}".encode())


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
