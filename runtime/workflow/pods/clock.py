"""The time that a run goes by: the machine's clock when its launcher began, and from then on the monotonic one.

So nobody's step ends early or late because the machine's clock was set. A launcher that takes a run up goes by what was
told: its time goes on from the log's, never back; while a pod runs on whose start was told, that pod says how much time
has passed since then (proc(5), stat, field 22: ticks after boot), whatever the machine's clock says now.
"""

import os
import time
from collections.abc import Callable, Iterable

from everstep.runtime.workflow.engine.events import Event, PodStarted

Seconds = Callable[[], float]
StartTime = Callable[[int], int]
"""When the process of that pid began, in ticks after boot; 0: there is none."""
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def wall_clock() -> float:
    """The machine's clock, which somebody may set."""
    return time.time()


def boot_clock() -> float:
    """Seconds after boot, those asleep counted: what processes' start times are in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Of one launcher. Its seconds are Unix time, as the machine's clock told it."""

    def __init__(self, begin: float, monotonic: Seconds = time.monotonic, wall: Seconds = wall_clock) -> None:
        self._begin = begin
        self._monotonic = monotonic
        self._wall = wall
        self._began = monotonic()

    def now(self) -> float:
        """The run's time."""
        return self._begin + self._monotonic() - self._began

    def file_time(self, modified: float, earliest: float) -> float:
        """The run's time at which a file was written, by its age; neither before `earliest` nor after now."""
        now = self.now()
        return max(min(now - (self._wall() - modified), now), min(earliest, now))


def resume_clock(
    told: Iterable[Event], began: StartTime, wall: Seconds = wall_clock, boot: Seconds = boot_clock,
    monotonic: Seconds = time.monotonic,
) -> Clock:  # fmt: skip
    """The clock of a launcher to whom these events were told."""
    last, started = 0.0, None
    for event in told:
        last = max(last, event.time)
        if isinstance(event, PodStarted) and event.start_time and began(event.pid) == event.start_time:
            started = event
    if started is not None:
        return Clock(max(last, started.time + boot() - started.start_time / TICKS_A_SECOND), monotonic, wall)
    return Clock(max(last, wall()), monotonic, wall)
