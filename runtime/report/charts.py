"""Geometry of the page's charts, in percent of the plot, so that a chart stretches and its text does not."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from everstep.runtime.report.history import History

COLUMNS = 1000
"""Columns of the x axis in a line chart: each shows the lowest and the highest of its values."""
PLACES = 500
"""Places on the x axis for marks and bars: those that would hide each other become one."""


@dataclass(frozen=True)
class Tick:
    """A tick of an axis: its place, 0 to 100 from the left or the top, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A restart on the x axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """One line over a plot of 100 x 100."""

    title: str
    description: str
    unit: str
    path: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    x_label: str = "iteration"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next((size * factor for factor in (1, 2, 5, 10) if size * factor >= raw), size * 10)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """`12.4 k`, `0.35`: three significant digits."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[suffix.strip()]:.3g}{suffix}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def line_chart(
    title: str, unit: str, values: Sequence[tuple[int, float]], history: History, *, zero: bool
) -> Chart | None:
    """A chart of (iteration, value) pairs; None for fewer than two. `zero`: the y axis begins at 0."""
    if len(values) < 2:
        return None
    first_x, right = values[0][0], values[-1][0]
    low, high = min(value for _, value in values), max(value for _, value in values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    bottom, top = (0.0 if zero else low - room), high + room
    width = max(right - first_x, 1)

    def x(iteration: float) -> float:
        return round((iteration - first_x) / width * 100, 3)

    def y(value: float) -> float:
        return round((top - value) / (top - bottom) * 100, 3)

    path = "M" + "L".join(f"{x(iteration)} {y(value)}" for iteration, value in _thin_out(values))
    times = [point.time for point in history.points]
    newest = list(accumulate((point.iteration for point in history.points), max, initial=0))
    marks = [
        Mark(min(max(x(newest[bisect_right(times, restart.time)]), 0.0), 100.0), f"restart {number}: {restart.reason}")
        for number, restart in enumerate(history.restarts, 1)
    ]
    first, last = values[0], values[-1]
    description = (
        f"{title}, {unit}: {short(first[1])} at iteration {first[0]}, {short(last[1])} at iteration {last[0]}, "
        f"lowest {short(low)}, highest {short(high)}; {len(marks)} restart{'' if len(marks) == 1 else 's'}."
    )
    return Chart(
        title=title,
        description=description,
        unit=unit,
        path=path,
        x_ticks=tuple(Tick(x(t), f"{t:.0f}") for t in nice_ticks(first_x, right) if t == int(t)),
        y_ticks=tuple(Tick(y(t), short(t)) for t in nice_ticks(bottom, top, 4)),
        marks=merge_close(marks),
    )


def _thin_out(values: Sequence[tuple[int, float]]) -> Iterable[tuple[int, float]]:
    """Fewer points that look the same: the lowest and the highest value in each of COLUMNS columns."""
    if len(values) <= 2 * COLUMNS:
        return values
    first_x, width = values[0][0], max(values[-1][0] - values[0][0], 1)
    columns: dict[int, list[tuple[int, float]]] = {}
    for value in values:
        columns.setdefault((value[0] - first_x) * COLUMNS // width, []).append(value)
    few = ({min(some, key=lambda v: v[1]), max(some, key=lambda v: v[1])} for some in columns.values())
    return [value for some in few for value in sorted(some)]


def merge_close(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """At most one mark at each of PLACES: the first of those that would hide each other, labelled with their number."""
    places: dict[int, list[Mark]] = {}
    for mark in marks:
        places.setdefault(int(mark.at * PLACES / 100), []).append(mark)
    return tuple(
        some[0] if len(some) == 1 else replace(some[0], label=f"{some[0].label}; {len(some) - 1} more")
        for some in places.values()
    )


def loss_chart(history: History) -> Chart | None:
    """The loss of each iteration, in its latest round."""
    values = [(point.iteration, point.loss) for point in history.curve if point.loss is not None]
    is_of_tokens = any(point.tokens is not None for point in history.curve)
    unit = "nats a token" if is_of_tokens else "as the script reports it"
    return line_chart("Loss", unit, values, history, zero=False)


def throughput_chart(history: History) -> Chart | None:
    """Tokens per second of each iteration, in its latest round."""
    values = [
        (point.iteration, point.tokens / point.seconds)
        for point in history.curve
        if point.tokens is not None and point.seconds > 0
    ]
    return line_chart("Throughput", "tokens a second", values, history, zero=True)
