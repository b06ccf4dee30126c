"""Where each second of a train step went. Pure; the parts add up to the whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runtime.report.history import History


class Part(StrEnum):
    """What a second can have gone to. The order is the bar's."""

    TRAINING = "training"
    STALL = "checkpoint stall"
    RESTART = "restart"
    STARTUP = "start-up"
    WAITING = "waiting for nodes"
    REST = "rest"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    part: Part
    label: str
    seconds: float
    share: float
    """Of the whole, 0 to 1."""


@dataclass(frozen=True)
class Ledger:
    """All seconds from `begin` to `end`, once each."""

    begin: float
    end: float
    entries: tuple[Entry, ...]

    @property
    def seconds(self) -> float:
        """The whole."""
        return self.end - self.begin

    @property
    def goodput(self) -> float:
        """Productive seconds / elapsed seconds, 0 to 1."""
        return sum(entry.share for entry in self.entries if entry.part is Part.TRAINING)

    @property
    def restart_s(self) -> float:
        """Seconds that restarts cost."""
        return sum(entry.seconds for entry in self.entries if entry.part is Part.RESTART)


Interval = tuple[float, float]


def ledger(told: History, begin: float, end: float) -> Ledger | None:
    """The ledger of the seconds from `begin` to `end` (the train step); None when there are none.

    Waiting lasts until the first round was formed, start-up until its first iteration began. A restart lasts as
    `Restart` says, or to the end; iterations computed again are therefore part of it. Rest: between iterations, after
    the last.
    """
    whole = end - begin
    if whole <= 0:
        return None
    taken: list[Interval] = []

    def take(wanted: Sequence[Interval]) -> float:
        """The seconds of these intervals inside the window that nothing took before."""
        free = _without(_union(wanted, begin, end), _union(taken, begin, end))
        taken.extend(free)
        return sum(stop - start for start, stop in free)

    lines: list[tuple[Part, str, float]] = []
    for number, restart in enumerate(told.restarts, 1):
        seconds = take([(restart.time, end if restart.until is None else restart.until)])
        lines.append((Part.RESTART, f"restart {number}: {restart.reason}", seconds))
    if told.begin is not None or told.points:
        first_round = told.rounds[0].begin if told.rounds else end
        first = min((point.time - point.seconds for point in told.points), default=end)
        waiting = take([(begin, min(first_round, first))])
        lines.append((Part.WAITING, "waiting for nodes", waiting))
        lines.append((Part.STARTUP, "start-up: until the first iteration", take([(begin, first)])))
    stall = training = 0.0
    for point in told.points:
        seconds = take([(point.time - point.seconds, point.time)])
        stalled = min(point.stall_s, seconds)
        stall += stalled
        training += seconds - stalled
    lines.append((Part.TRAINING, "training", training))
    lines.append((Part.STALL, "checkpoint stall", stall))
    rest = max(whole - sum(seconds for _, _, seconds in lines), 0.0)
    lines.append((Part.REST, "rest: between iterations, after the last", rest))
    order = list(Part)
    lines.sort(key=lambda line: order.index(line[0]))
    return Ledger(begin, end, tuple(Entry(part, label, s, s / whole) for part, label, s in lines))


def _union(intervals: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    """The same seconds as disjoint intervals in order, cut to the window."""
    merged: list[Interval] = []
    for start, stop in sorted((max(a, begin), min(b, end)) for a, b in intervals):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _without(wanted: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """What of `wanted` lies outside `taken`; both disjoint and in order."""
    left: list[Interval] = []
    for start, stop in wanted:
        for other_start, other_stop in taken:
            if other_stop <= start or other_start >= stop:
                continue
            if other_start > start:
                left.append((start, other_start))
            start = other_stop
        if start < stop:
            left.append((start, stop))
    return left
