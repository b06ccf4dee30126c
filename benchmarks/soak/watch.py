"""What a run uses, sampled while it trains."""

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.harness import TrainStep

FLAT = 1.15
"""A median of the last quarter may be so many times that of the first."""
SMALL_FILES, SMALL_BYTES = 20, 32 << 20
"""Or more than it by this."""


@dataclass(frozen=True)
class Sample:
    """One look at all processes of a run."""

    processes: int
    files: int
    """Descriptors of the train step and the agents."""
    private_bytes: int
    """Of the train step and the agents: memory that nobody shares with them."""
    shared_bytes: int
    """In /dev/shm."""


def sample(run: TrainStep) -> Sample:
    """Look now."""
    files = private = 0
    step = run.step()
    for process in [*run.agents(), *([step] if step else [])]:
        with suppress(psutil.NoSuchProcess):
            files += process.num_fds()
            private += process.memory_full_info().uss
    shared = 0
    for path in run.segments():
        with suppress(FileNotFoundError):
            shared += path.stat().st_blocks * 512
    return Sample(len(run.processes()), files, private, shared)


@dataclass(frozen=True)
class Trend:
    """Medians of the first and of the last quarter."""

    what: str
    first: float
    last: float
    small: float

    @property
    def is_flat(self) -> bool:
        """Has it not grown?"""
        return self.last <= max(self.first * FLAT, self.first + self.small)


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Of a run's samples when nothing was missing: those with the most frequent number of processes or more."""
    usual = statistics.mode(reading.processes for reading in samples)
    whole = [reading for reading in samples if reading.processes >= usual]
    quarter = max(1, len(whole) // 4)

    def trend(what: str, values: list[float], small: float) -> Trend:
        return Trend(what, statistics.median(values[:quarter]), statistics.median(values[-quarter:]), small)

    return [
        trend("descriptors", [reading.files for reading in whole], SMALL_FILES),
        trend("MiB of their own", [reading.private_bytes / 2**20 for reading in whole], SMALL_BYTES / 2**20),
        trend("MiB in /dev/shm", [reading.shared_bytes / 2**20 for reading in whole], SMALL_BYTES / 2**20),
    ]
