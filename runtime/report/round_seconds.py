"""What the seconds of a round were spent on, the same on each of its nodes: they train together. Pure.

Rank 0 reports an iteration's end, and how much of it was a stall or an evaluation; these are put at its end,
compilation at its beginning. What a script does between two iterations is part of the second.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median_low
from typing import NamedTuple, Protocol

from everstep.runtime.report.activity import Activity
from everstep.runtime.report.node_lives import FAULTLESS, RoundLife

PACE_ITERATIONS = 20
"""A round's pace is the median of its lines from the second to this one: packed telemetry keeps each of them."""


class Iteration(Protocol):
    """What is needed of a finished iteration, or of several that were reported as one (`history.Point`)."""

    @property
    def time(self) -> float: ...
    @property
    def iteration(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def stall_s(self) -> float: ...
    @property
    def evaluation_s(self) -> float: ...
    @property
    def restore_s(self) -> float: ...
    @property
    def count(self) -> int: ...


class Stretch(NamedTuple):
    """A stretch of time that was spent on one activity."""

    begin: float
    end: float
    activity: Activity


Sums = Mapping[Activity, float]


class RoundSeconds:
    """The stretches of a round: they begin with it, end with it, and have no gap and no overlap."""

    def __init__(self, life: RoundLife, iterations: Sequence[Iteration], iteration_before: int, end: float) -> None:
        """`iterations`: those of the round, by time. `iteration_before`: the newest iteration of the rounds before.
        `end`: when the window ends, for a round that has not."""
        end = max(min(life.end, end), life.begin)
        self.stretches = tuple(_with_hangs(_fill(life, iterations, iteration_before, end), life.hangs))
        self._ends = [stretch.end for stretch in self.stretches]
        self._begins = [stretch.begin for stretch in self.stretches]
        lengths: dict[Activity, list[float]] = {}
        for at, stretch in enumerate(self.stretches):
            lengths.setdefault(stretch.activity, [0.0] * len(self.stretches))[at] = stretch.end - stretch.begin
        self._before = {name: list(accumulate(some, initial=0.0)) for name, some in lengths.items()}
        self._known: dict[tuple[float, float], Sums] = {}

    def between(self, begin: float, end: float) -> Iterator[Stretch]:
        """The stretches from `begin` to `end`."""
        for stretch in self.stretches[bisect_right(self._ends, begin) : bisect_left(self._begins, end)]:
            yield Stretch(max(stretch.begin, begin), min(stretch.end, end), stretch.activity)

    def sums(self, begin: float, end: float) -> Sums:
        """Seconds of each activity from `begin` to `end`. Nodes of a round mostly ask the same."""
        key = begin, end
        if key not in self._known:
            self._known[key] = self._sum(begin, end)
        return self._known[key]

    def _sum(self, begin: float, end: float) -> Sums:
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        if last <= first:
            return {}
        sums = {name: before[last] - before[first] for name, before in self._before.items()}
        head, tail = self.stretches[first], self.stretches[last - 1]
        sums[head.activity] -= max(begin - head.begin, 0.0)
        sums[tail.activity] -= max(tail.end - end, 0.0)
        return sums


def pace(iterations: Sequence[Iteration]) -> float:
    """Seconds that an iteration of the round takes, without saves and evaluation."""
    some = [_mean_training_s(iteration) for iteration in iterations[1:PACE_ITERATIONS] or iterations]
    return median_low(some) if some else 0.0


def _mean_training_s(iteration: Iteration) -> float:
    return max(iteration.seconds - iteration.stall_s - iteration.evaluation_s, 0.0) / iteration.count


class _Filler:
    """Writes one stretch after the other: the next begins where the last ends."""

    def __init__(self, begin: float, end: float) -> None:
        self.stretches: list[Stretch] = []
        self.at, self._end = begin, end

    def until(self, time: float, activity: Activity) -> None:
        """The activity until that time, if it is later than what is known already."""
        time = min(time, self._end)
        if time > self.at:
            self.stretches.append(Stretch(self.at, time, activity))
            self.at = time


def _fill(life: RoundLife, iterations: Sequence[Iteration], iteration_before: int, end: float) -> list[Stretch]:
    filler = _Filler(life.begin, end)
    usual = pace(iterations)
    for at, iteration in enumerate(iterations):
        if at == 0:
            first = iteration.time - iteration.seconds
            filler.until(first - iteration.restore_s, Activity.STARTUP)
            filler.until(first, Activity.RESTORE)
        trained_at = iteration.time - min(iteration.stall_s, iteration.seconds)
        training_s, evaluated_at = _mean_training_s(iteration), trained_at - iteration.evaluation_s
        if at == 0 and len(iterations) > 1:
            compiled_s = (training_s - usual) * iteration.count
            filler.until(min(filler.at + compiled_s, trained_at), Activity.COMPILE)
        new_count = min(iteration.iteration - iteration_before, iteration.count)
        if new_count < iteration.count:
            filler.until(evaluated_at - max(new_count, 0) * training_s, Activity.RECOMPUTED)
        filler.until(evaluated_at, Activity.PRODUCTIVE)
        filler.until(trained_at, Activity.EVALUATION)
        filler.until(iteration.time, Activity.SAVE)
    _fill_rest(filler, life, iterations, usual, end)
    return filler.stretches


def _fill_rest(filler: _Filler, life: RoundLife, iterations: Sequence[Iteration], usual: float, end: float) -> None:
    """What was done after the last iteration, or in a round that finished none."""
    rest_activity = Activity.RECOMPUTED if iterations else Activity.STARTUP
    if life.broken_by is None:
        if not iterations:
            filler.until(end, Activity.STARTUP)
        filler.until(min(life.last_commit, end), Activity.SAVE)
        filler.until(end, Activity.OTHER)
    elif life.death is not None:
        died_at, reported_at = life.death
        filler.until(died_at, rest_activity)
        filler.until(reported_at, Activity.DETECT)
        filler.until(end, Activity.DECIDE)
    elif iterations and life.broken_by not in FAULTLESS:
        filler.until(iterations[-1].time + usual, rest_activity)
        filler.until(end, Activity.DETECT)
    else:
        filler.until(end, rest_activity)


def _with_hangs(stretches: Sequence[Stretch], hangs: Sequence[tuple[float, float]]) -> Iterator[Stretch]:
    """The stretches, hung while they hung, whatever else was reported of that time."""
    hang_spans = [(begin, end) for begin, end in hangs if end > begin]
    for stretch in stretches:
        at = stretch.begin
        while hang_spans and hang_spans[0][1] <= at:
            hang_spans.pop(0)
        for begin, end in hang_spans:
            if begin >= stretch.end:
                break
            if begin > at:
                yield Stretch(at, begin, stretch.activity)
            stop = min(end, stretch.end)
            if stop > max(at, begin):
                yield Stretch(max(at, begin), stop, Activity.HUNG)
                at = stop
        if stretch.end > at:
            yield Stretch(at, stretch.end, stretch.activity)
