"""The timeline: a lane shows what a node's time was spent on; nodes that did the same share a lane. Pure."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from everstep.runtime.report.activity import Activity
from everstep.runtime.report.charts import Mark, Tick, merge_close, nice_ticks, short
from everstep.runtime.report.history import History
from everstep.runtime.report.ledger import Ledger, NodeLedger

COLUMNS = 300
"""Columns of a lane: each shows what took most of its time."""
LANES = 300
"""Most lanes: of those left, the ones that were productive longest are left out."""
MOST_NODES = 2000
"""Nodes that are looked at."""


@dataclass(frozen=True)
class Bar:
    """A stretch of a lane, in columns."""

    left: int
    width: int
    activity: Activity


@dataclass(frozen=True)
class RoundBar:
    """A round, in percent of the axis."""

    left: float
    width: float
    label: str
    title: str


@dataclass(frozen=True)
class Lane:
    """What one node did, or several that did the same."""

    nodes: tuple[str, ...]
    bars: tuple[Bar, ...]
    goodput: float
    """Share of their seconds that was productive, 0 to 1."""
    seconds: Mapping[Activity, float]
    """Of all of them."""

    @property
    def name(self) -> str:
        """`worker-0-0`, or `worker-0-0 + 63`."""
        first, *others = self.nodes
        return f"{first} + {len(others)}" if others else first


@dataclass(frozen=True)
class Timeline:
    """Lanes over a common axis in seconds."""

    lanes: tuple[Lane, ...]
    rounds: tuple[RoundBar, ...]
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    activities: tuple[Activity, ...]
    """Those that occur."""
    description: str
    hidden: int = 0
    """Nodes that are not shown."""


def timeline(history: History, ledger: Ledger) -> Timeline:
    """The timeline of the ledger's nodes."""
    groups: dict[tuple[Bar, ...], list[NodeLedger]] = {}
    edges = [ledger.begin + column * ledger.seconds / COLUMNS for column in range(COLUMNS + 1)]
    for node in ledger.nodes[-MOST_NODES:]:
        groups.setdefault(tuple(_bars(node, ledger, edges)), []).append(node)
    lanes = [_lane(bars, nodes) for bars, nodes in groups.items()]
    worst_lanes = sorted(lanes, key=lambda lane: lane.goodput)[:LANES]
    lanes_drawn = [lane for lane in lanes if lane in worst_lanes] if len(worst_lanes) < len(lanes) else lanes
    return Timeline(
        lanes=tuple(lanes_drawn),
        rounds=tuple(_rounds(history, ledger)),
        ticks=tuple(Tick(t / ledger.seconds * 100, f"{short(t)} s") for t in nice_ticks(0.0, ledger.seconds)),
        marks=merge_close(
            Mark(_percent(restart.time, ledger), f"restart {number}: {restart.reason}")
            for number, restart in enumerate(history.restarts, 1)
        ),
        activities=tuple(entry.activity for entry in ledger.entries),
        description=f"{len(ledger.nodes)} nodes, {len(history.rounds)} rounds, {len(history.restarts)} restarts "
        f"in {ledger.seconds:.1f} seconds.",
        hidden=len(ledger.nodes) - sum(len(lane.nodes) for lane in lanes_drawn),
    )


def _percent(time: float, ledger: Ledger) -> float:
    return round(min(max((time - ledger.begin) / ledger.seconds * 100, 0.0), 100.0), 3)


def _bars(node: NodeLedger, ledger: Ledger, edges: Sequence[float]) -> Iterator[Bar]:
    """What took most of each column; neighbours that are alike are joined. Nothing where the node was absent."""
    width = ledger.seconds / COLUMNS
    columns = [_most(node.seconds_between(begin, end), width) for begin, end in pairwise(edges)]
    at = 0
    for activity, some in groupby(columns):
        count = len(list(some))
        if activity is not None:
            yield Bar(at, count, activity)
        at += count


def _most(seconds: Mapping[Activity, float], width: float) -> Activity | None:
    if sum(seconds.values()) < width / 2:
        return None
    return max(seconds, key=seconds.__getitem__)


def _lane(bars: tuple[Bar, ...], nodes: list[NodeLedger]) -> Lane:
    total: dict[Activity, float] = {}
    for node in nodes:
        for activity, seconds in node.seconds.items():
            total[activity] = total.get(activity, 0.0) + seconds
    whole = sum(total.values()) or 1.0
    return Lane(tuple(node.node for node in nodes), bars, total.get(Activity.PRODUCTIVE, 0.0) / whole, total)


def _rounds(history: History, ledger: Ledger) -> Iterator[RoundBar]:
    """Those that begin in the same half percent of the axis are one bar."""
    edges = [step / 2 for step in range(200)]
    by_place = groupby(history.rounds, key=lambda round_: bisect_right(edges, _percent(round_.begin, ledger)))
    for _, group in by_place:
        some = list(group)
        first, last = some[0], some[-1]
        end = last.end if last.end is not None else ledger.end
        left_percent = _percent(first.begin, ledger)
        label = f"{first.number}" if len(some) == 1 else f"{first.number}–{last.number}"
        size = f"{len(last.nodes)} node{'' if len(last.nodes) == 1 else 's'}"
        title = f"round {label}: {size}, {end - first.begin:.1f} s. {last.reason}"
        yield RoundBar(left_percent, max(_percent(end, ledger) - left_percent, 0.2), label, title)
