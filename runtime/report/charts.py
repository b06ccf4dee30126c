"""Geometry of the page's charts: everything as percent of the plot, so that a chart stretches and its text does not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.report.history import History
from runtime.report.ledger import Ledger


@dataclass(frozen=True)
class Tick:
    """A place on an axis, 0 to 100 from the left or the top, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A place that a restart has on the x axis."""

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


@dataclass(frozen=True)
class Bar:
    """A round of one node."""

    left: float
    width: float
    label: str
    title: str


@dataclass(frozen=True)
class Lane:
    """One node's time."""

    node: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Timeline:
    """Lanes over one axis of seconds."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    description: str


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from at or above `low` to at or below `high`, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next((size * factor for factor in (1, 2, 5, 10) if size * factor >= raw), size * 10)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """`12.4 k`, `0.35`: three digits that matter."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[suffix.strip()]:.3g}{suffix}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def line(title: str, unit: str, values: Sequence[tuple[int, float]], told: History, *, zero: bool) -> Chart | None:
    """A chart of (iteration, value); None for less than two. `zero`: the y axis begins at 0."""
    if len(values) < 2:
        return None
    left, right = values[0][0], values[-1][0]
    low, high = min(value for _, value in values), max(value for _, value in values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    bottom, top = (0.0 if zero else low - room), high + room
    width = max(right - left, 1)

    def x(iteration: float) -> float:
        return round((iteration - left) / width * 100, 3)

    def y(value: float) -> float:
        return round((top - value) / (top - bottom) * 100, 3)

    path = "M" + "L".join(f"{x(iteration)} {y(value)}" for iteration, value in values)
    marks = [
        Mark(min(max(x(_iteration_at(told, restart.time)), 0.0), 100.0), f"restart {number}: {restart.reason}")
        for number, restart in enumerate(told.restarts, 1)
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
        x_ticks=tuple(Tick(x(t), f"{t:.0f}") for t in nice_ticks(left, right) if t == int(t)),
        y_ticks=tuple(Tick(y(t), short(t)) for t in nice_ticks(bottom, top, 4)),
        marks=tuple(marks),
    )


def _iteration_at(told: History, time: float) -> int:
    """The newest iteration that was finished at that time."""
    return max((point.iteration for point in told.points if point.time <= time), default=0)


def loss(told: History) -> Chart | None:
    """The loss of each iteration, of its latest round."""
    values = [(point.iteration, point.loss) for point in told.curve if point.loss is not None]
    return line("Loss", "nats a token", values, told, zero=False)


def throughput(told: History) -> Chart | None:
    """Tokens a second of each iteration, of its latest round."""
    values = [
        (point.iteration, point.tokens / point.seconds)
        for point in told.curve
        if point.tokens is not None and point.seconds > 0
    ]
    return line("Throughput", "tokens a second", values, told, zero=True)


def timeline(told: History, span: Ledger) -> Timeline | None:
    """A lane for each node that was ever in a round, on the ledger's seconds; None without rounds."""
    nodes = sorted({node for round_ in told.rounds for node in round_.nodes})
    if not nodes:
        return None

    def at(time: float) -> float:
        return round(min(max((time - span.begin) / span.seconds * 100, 0.0), 100.0), 3)

    lanes = []
    for node in nodes:
        bars = []
        for round_ in told.rounds:
            if node in round_.nodes:
                end = round_.end if round_.end is not None else span.end
                left = at(round_.begin)
                title = f"{node}, round {round_.number}: {end - round_.begin:.1f} s. {round_.reason}"
                bars.append(Bar(left, max(at(end) - left, 0.2), str(round_.number), title))
        lanes.append(Lane(node, tuple(bars)))
    return Timeline(
        lanes=tuple(lanes),
        ticks=tuple(Tick(t / span.seconds * 100, f"{short(t)} s") for t in nice_ticks(0.0, span.seconds)),
        marks=tuple(Mark(at(r.time), f"restart {number}: {r.reason}") for number, r in enumerate(told.restarts, 1)),
        description=f"{len(nodes)} nodes, {len(told.rounds)} rounds, {len(told.restarts)} restarts "
        f"in {span.seconds:.1f} seconds.",
    )
