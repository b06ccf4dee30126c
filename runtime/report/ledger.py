"""Where each second of each node went. Pure; by construction the parts add up to the whole.

A node's seconds begin when it is requested (for first-round nodes: at the start of the window) and end when it is gone.
Its life cuts them into parts that follow each other; `RoundSeconds` cuts a part in a round further, into stretches.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from everstep.runtime.report.activity import GOODPUT_NAMES, Activity
from everstep.runtime.report.history import History, Point, Restart
from everstep.runtime.report.node_lives import Event, Lives, Step
from everstep.runtime.report.round_seconds import RoundSeconds, Stretch, Sums

MOST_ENTRIES = 200
"""Restarts that are shown one by one: the newest ones."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    activity: Activity
    seconds: float
    """Of all nodes together."""
    share: float
    """Share of the whole, 0 to 1."""

    @property
    def goodput_name(self) -> str:
        """The nearest name of ml-goodput-measurement."""
        return GOODPUT_NAMES[self.activity]


class _LifePart(NamedTuple):
    """A part of a node's life: of one activity, or in a round."""

    begin: float
    end: float
    activity: Activity
    round: RoundSeconds | None = None

    def sums(self, begin: float, end: float) -> Sums:
        begin, end = max(begin, self.begin), min(end, self.end)
        if end <= begin:
            return {}
        return self.round.sums(begin, end) if self.round else {self.activity: end - begin}


@dataclass(frozen=True)
class NodeLedger:
    """The seconds of one node."""

    node: str
    _parts: Sequence[_LifePart] = field(repr=False)

    @cached_property
    def seconds(self) -> Sums:
        """Seconds of each activity."""
        return self.seconds_between(float("-inf"), float("inf"))

    @cached_property
    def _begins(self) -> list[float]:
        return [part.begin for part in self._parts]

    def seconds_between(self, begin: float, end: float) -> Sums:
        """Seconds of each activity in that time."""
        at = max(bisect_right(self._begins, begin) - 1, 0)
        first = self._parts[at]
        if first.begin <= begin and end <= first.end:
            return first.sums(begin, end)
        total: defaultdict[Activity, float] = defaultdict(float)
        for part in islice(self._parts, at, None):
            if part.begin >= end:
                break
            for activity, seconds in part.sums(begin, end).items():
                total[activity] += seconds
        return total

    def stretches(self) -> Iterator[Stretch]:
        """What it did, in order."""
        for part in self._parts:
            if part.round is not None:
                yield from part.round.between(part.begin, part.end)
            else:
                yield Stretch(part.begin, part.end, part.activity)


@dataclass(frozen=True)
class Ledger:
    """All seconds of all nodes from `begin` to `end`, once each."""

    begin: float
    end: float
    nodes: tuple[NodeLedger, ...]
    """Those that were there at some time, by name."""
    iterations: int = 0
    """How many were computed in that time."""

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return self.end - self.begin

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Activities that took any time, in the order of `Activity`."""
        total: defaultdict[Activity, float] = defaultdict(float)
        for node in self.nodes:
            for activity, seconds in node.seconds.items():
                total[activity] += seconds
        whole = sum(total.values())
        return tuple(
            Entry(activity, total[activity], total[activity] / whole)
            for activity in Activity
            if total.get(activity, 0.0) > 0
        )

    @property
    def node_seconds(self) -> float:
        """The seconds of all nodes together."""
        return sum(entry.seconds for entry in self.entries)

    @property
    def goodput(self) -> float | None:
        """Productive seconds / seconds of all nodes, 0 to 1; None: no iteration was computed."""
        share = sum(entry.share for entry in self.entries if entry.activity is Activity.PRODUCTIVE)
        return share if self.iterations else None

    def badput(self) -> Mapping[str, float]:
        """Share of each kind of time that was not productive, by its name in ml-goodput-measurement."""
        shares: defaultdict[str, float] = defaultdict(float)
        for entry in self.entries:
            if entry.activity is not Activity.PRODUCTIVE:
                shares[entry.goodput_name] += entry.share
        return shares

    def cost_of(self, restart: Restart) -> Mapping[Activity, float]:
        """What the seconds of a restart went to, in seconds of one node: the mean of the nodes that were there."""
        end = self.end if restart.until is None else min(restart.until, self.end)
        total: defaultdict[Activity, float] = defaultdict(float)
        for node in self.nodes:
            for activity, seconds in node.seconds_between(restart.time, end).items():
                total[activity] += seconds
        share = (end - restart.time) / (sum(total.values()) or 1.0)
        return {activity: total[activity] * share for activity in Activity if total.get(activity, 0.0) > 0}


def ledger(history: History, begin: float, end: float) -> Ledger | None:
    """The ledger of the seconds from `begin` to `end` (the train step); None if there are none, or no nodes."""
    if end <= begin or not history.lives.nodes:
        return None
    rounds = _rounds(history, end)
    first = next(iter(history.lives.rounds.values()), None)
    early = frozenset(history.lives.nodes if first is None else first.members)
    nodes = list[NodeLedger]()
    for node, events in sorted(history.lives.nodes.items()):
        life = _Life(history.lives, rounds, min(begin, events[0].time) if node in early else None)
        if parts := tuple(_parts(life, events, begin, end)):
            nodes.append(NodeLedger(node, parts))
    iterations = sum(point.count for point in history.points if begin < point.time <= end)
    return Ledger(begin, end, tuple(nodes), iterations) if nodes else None


def _rounds(history: History, end: float) -> dict[int, RoundSeconds]:
    by_round: dict[int, list[Point]] = {}
    for point in history.points:
        by_round.setdefault(point.round, []).append(point)
    rounds, iteration_before = dict[int, RoundSeconds](), 0
    for number, life in history.lives.rounds.items():
        points = by_round.get(number, [])
        rounds[number] = RoundSeconds(life, points, iteration_before, end)
        iteration_before = max([iteration_before, *(point.iteration for point in points)])
    return rounds


class _Life:
    """Cuts a node's life into parts that follow each other while it is there."""

    def __init__(self, lives: Lives, rounds: Mapping[int, RoundSeconds], since: float | None) -> None:
        """`since`: when it came, if that was before its first event."""
        self._lives, self._rounds = lives, rounds
        self._at = since or 0.0
        self._doing = Step.GONE if since is None else Step.CAME
        self._round = 0
        """The round that it is in, or was in last."""

    def next(self, event: Event) -> Iterator[_LifePart]:
        """What it did until this event."""
        if self._doing is not Step.GONE:
            yield from self._doing_until(event)
        self._at = event.time
        match event.step:
            case Step.UNSEATED if self._doing in (Step.RELEASED, Step.GONE):
                pass  # A round's end unseats all its members, also those that were released or lost before.
            case Step.RELEASED | Step.SILENT if self._doing is Step.GONE:
                pass  # Neither brings a lost node back.
            case Step.SILENT if self._doing is Step.RELEASED:
                pass  # Nobody waits for it.
            case Step.SEATED:
                self._doing, self._round = event.step, event.round
            case _:
                self._doing = event.step

    def _doing_until(self, event: Event) -> Iterator[_LifePart]:
        match self._doing:
            case Step.SEATED:
                yield _LifePart(self._at, event.time, Activity.OTHER, self._rounds[self._round])
            case Step.CAME:
                prepares_at = event.time - max(event.prepared_s, event.checked_s)
                checks_at = event.time - event.checked_s
                yield from self._cut(
                    event, (Activity.WAITING, prepares_at), (Activity.STARTUP, checks_at), (Activity.CHECK, event.time)
                )
            case Step.JOINED:
                last = self._lives.rounds[event.round].last_join if event.step is Step.SEATED else event.time
                yield from self._cut(event, (Activity.WAITING, last), (Activity.RENDEZVOUS, event.time))
            case Step.UNSEATED:
                judged_at = self._lives.rounds[self._round].judged
                prepares_at = event.time - event.prepared_s
                yield from self._cut(
                    event,
                    (Activity.DECIDE, judged_at), (Activity.RENDEZVOUS, prepares_at), (Activity.STARTUP, event.time),
                )  # fmt: skip
            case Step.SILENT:
                yield from self._cut(
                    event, (Activity.DETECT, event.time - event.prepared_s), (Activity.STARTUP, event.time)
                )
            case _:
                yield _LifePart(self._at, event.time, Activity.IDLE)

    def _cut(self, event: Event, *ends: tuple[Activity, float]) -> Iterator[_LifePart]:
        """Activities that follow each other until the event, each until its time; one that ends before it begins has
        no length."""
        at = self._at
        for activity, end in ends:
            end = min(max(end, at), event.time)
            yield _LifePart(at, end, activity)
            at = end


def _parts(life: _Life, events: Sequence[Event], begin: float, end: float) -> Iterator[_LifePart]:
    """The parts inside the window that have any length."""
    for event in (*events, Event(max(end, events[-1].time), Step.GONE)):
        for part in life.next(event):
            clipped = part._replace(begin=max(part.begin, begin), end=min(part.end, end))
            if clipped.end > clipped.begin:
                yield clipped
