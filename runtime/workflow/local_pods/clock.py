"""The time of a run: the machine's clock when its launcher began, and from then on the monotonic clock.

So no step ends early or late because the machine's clock was set. A launcher that resumes a run continues from the
log's last time and never goes back. While a pod of the log still runs, its start time says how much time has passed
since then (proc(5), stat, field 22: ticks after boot), whatever the machine's clock says now.
"""

import os
import time
from collections.abc import Callable, Iterable

from everstep.runtime.workflow.engine.events import Event, PodStarted

Seconds = Callable[[], float]
StartTime = Callable[[int], int | None]
"""When the process with that pid began, in ticks after boot; None: there is none."""
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def wall_clock() -> float:
    """The machine's clock, which can be set. Unix time."""
    return time.time()


def boot_clock() -> float:
    """Seconds after boot, including suspends: the clock of processes' start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """The clock of one launcher, in Unix time by the machine's clock at its start."""

    def __init__(self, begin: float, monotonic: Seconds = time.monotonic, wall: Seconds = wall_clock) -> None:
        self._begin = begin
        self._monotonic = monotonic
        self._wall = wall
        self._began = monotonic()

    def now(self) -> float:
        """The run's time."""
        return self._begin + self._monotonic() - self._began

    def file_time(self, modified_at: float, earliest: float) -> float:
        """The run's time at which a file was written, by the file's age, bounded by `earliest` and now."""
        now = self.now()
        return max(min(now - (self._wall() - modified_at), now), min(earliest, now))


def resume_clock(
    events: Iterable[Event], began: StartTime, wall: Seconds = wall_clock, boot: Seconds = boot_clock,
    monotonic: Seconds = time.monotonic,
) -> Clock:  # fmt: skip
    """The clock of a launcher that resumes a run with these events."""
    last, last_start = 0.0, None
    for event in events:
        last = max(last, event.time)
        if isinstance(event, PodStarted) and event.start_time and began(event.pid) == event.start_time:
            last_start = event
    if last_start is not None:
        return Clock(max(last, last_start.time + boot() - last_start.start_time / TICKS_A_SECOND), monotonic, wall)
    return Clock(max(last, wall()), monotonic, wall)
