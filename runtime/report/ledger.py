"""Where each second of a train step went. Pure; the parts add up to the whole."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import StrEnum

from everstep.runtime.report.history import History

MOST_ENTRIES = 200
"""Restarts with a line of their own: the newest ones."""


class Part(StrEnum):
    """What a second was spent on. The order is that of the bar."""

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
    """Share of the whole, 0 to 1."""


@dataclass(frozen=True)
class Ledger:
    """All seconds from `begin` to `end`, once each."""

    begin: float
    end: float
    entries: tuple[Entry, ...]
    iterations: int = 0
    """How many were computed in that time."""

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return self.end - self.begin

    @property
    def goodput(self) -> float | None:
        """Productive seconds / elapsed seconds, 0 to 1; None if there was nothing to do: no iteration was computed."""
        share = sum(entry.share for entry in self.entries if entry.part is Part.TRAINING)
        return share if self.iterations else None

    @property
    def restart_s(self) -> float:
        """Seconds that restarts cost."""
        return sum(entry.seconds for entry in self.entries if entry.part is Part.RESTART)


def ledger(history: History, begin: float, end: float) -> Ledger | None:
    """The ledger of the seconds from `begin` to `end` (the train step); None if there are none.

    Waiting lasts until the first round was formed, start-up until its first iteration began. A restart lasts as
    `Restart` says, or to the end; the newest MOST_ENTRIES have lines of their own, and iterations that are computed
    again count as part of the restart. Rest: between iterations, and after the last.
    """
    whole = end - begin
    if whole <= 0:
        return None
    spent = _SpentTime(begin, end)
    lines: list[tuple[Part, str, float]] = []
    earlier, older = 0.0, len(history.restarts) - MOST_ENTRIES
    for number, restart in enumerate(history.restarts, 1):
        seconds = spent.take(restart.time, end if restart.until is None else restart.until)
        if number <= older:
            earlier += seconds
        else:
            lines.append((Part.RESTART, f"restart {number}: {restart.reason}", seconds))
    if older > 0:
        lines.insert(0, (Part.RESTART, f"restarts 1 to {older}", earlier))
    if history.begin is not None or history.points:
        first_round = history.rounds[0].begin if history.rounds else end
        first = min((point.time - point.seconds for point in history.points), default=end)
        waiting = spent.take(begin, min(first_round, first))
        lines.append((Part.WAITING, "waiting for nodes", waiting))
        lines.append((Part.STARTUP, "start-up: until the first iteration", spent.take(begin, first)))
    stall = training = 0.0
    for point in history.points:
        seconds = spent.take(point.time - point.seconds, point.time)
        stalled = min(point.stall_s, seconds)
        stall += stalled
        training += seconds - stalled
    lines.append((Part.TRAINING, "training", training))
    lines.append((Part.STALL, "checkpoint stall", stall))
    rest = max(whole - sum(seconds for _, _, seconds in lines), 0.0)
    lines.append((Part.REST, "rest: between iterations, after the last", rest))
    order = list(Part)
    lines.sort(key=lambda line: order.index(line[0]))
    inside = sum(begin < point.time <= end for point in history.points)
    return Ledger(begin, end, tuple(Entry(part, label, s, s / whole) for part, label, s in lines), inside)


class _SpentTime:
    """The seconds of a window that are accounted for, as disjoint intervals in order."""

    def __init__(self, begin: float, end: float) -> None:
        self._window = begin, end
        self._starts: list[float] = []
        self._ends: list[float] = []

    def take(self, start: float, stop: float) -> float:
        """Take that interval; returns the seconds of it inside the window that were still free."""
        start, stop = max(start, self._window[0]), min(stop, self._window[1])
        if stop <= start:
            return 0.0
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, stop)
        met = list(zip(self._starts[first:last], self._ends[first:last], strict=True))
        free = stop - start - sum(min(other_stop, stop) - max(other, start) for other, other_stop in met)
        self._starts[first:last] = [min([start, *(other for other, _ in met)])]
        self._ends[first:last] = [max([stop, *(other for _, other in met)])]
        return max(free, 0.0)
