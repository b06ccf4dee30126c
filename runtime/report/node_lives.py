"""From a job's records to the life of each node: when it came, joined, trained, went. Pure.

Only what the ledger needs is kept: a month of whole records would fill the memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from everstep.runtime.job import records as job

FAULTLESS = frozenset(
    {job.Reason.GROW, job.Reason.SCALED, job.Reason.PREEMPTED, job.Reason.REJOINED, job.Reason.RESTARTED}
)
"""Reasons to end a round at which nobody had to find out that something had failed."""

NodeRecord = (
    job.NodeRequested
    | job.NodeAppeared
    | job.NodeJoined
    | job.NodeReleased
    | job.NodeLost
    | job.NodeSuspected
    | job.NodeFinished
    | job.WorkerFaulted
    | job.FaultJudged
    | job.HangSeen
    | job.HangOver
    | job.RoundFormed
    | job.RoundBroken
    | job.Committed
    | job.JobEnded
    | job.JobReopened
)
"""The records that lives are made from."""


class Step(Enum):
    """What happens to a node."""

    CAME = auto()
    JOINED = auto()
    SEATED = auto()
    FINISHED = auto()
    UNSEATED = auto()
    SILENT = auto()
    RELEASED = auto()
    GONE = auto()


class Event(NamedTuple):
    """A step in a node's life."""

    time: float
    step: Step
    round: int = 0
    """SEATED, FINISHED, UNSEATED: of that round."""
    checked_s: float = 0.0
    """JOINED: how long its check took before."""
    prepared_s: float = 0.0
    """JOINED: how long its agent imported before, for its workers; the check runs beside that."""


@dataclass
class RoundLife:
    """A round from its agreement to its end."""

    number: int
    begin: float
    members: tuple[str, ...]
    end: float = math.inf
    """inf: it has not ended."""
    last_join: float = 0.0
    """When the last of its members had joined."""
    broken_by: job.Reason | None = None
    """None: the job ended with it, or it runs."""
    death: tuple[float, float] | None = None
    """(When its first worker died, when that was reported)."""
    judged: float = 0.0
    """When the last of its faults was judged."""
    hangs: list[tuple[float, float]] = field(default_factory=list)
    """From the last progress to the next, or to its end."""
    last_commit: float = 0.0


@dataclass(frozen=True)
class Lives:
    """The lives of all nodes of a job."""

    nodes: Mapping[str, Sequence[Event]] = field(default_factory=dict)
    rounds: Mapping[int, RoundLife] = field(default_factory=dict)


class LifeCollector:
    """Collects lives from a journal's records, in their order."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Event]] = {}
        self._rounds: dict[int, RoundLife] = {}
        self._running: RoundLife | None = None
        self._joined: dict[str, float] = {}
        """When each node joined that has no seat."""
        self._there: set[str] = set()
        self._appeared: set[str] = set()
        """Those that came by themselves and have not joined yet."""
        self._ended = 0.0
        """When the job ended."""

    def lives(self) -> Lives:
        """What was collected."""
        return Lives(self._nodes, self._rounds)

    def add(self, record: job.Record) -> None:
        """Take the next record."""
        match record:
            case job.NodeRequested():
                self._come(record.node, record.time)
            case job.NodeAppeared():
                self._come(record.node, record.time)
                self._appeared.add(record.node)
            case job.NodeJoined():
                self._join(record)
            case job.NodeReleased():
                self._note(record.node, Event(record.time, Step.RELEASED))
            case job.NodeLost():
                self._go(record.node, record.time)
            case job.NodeSuspected():
                self._note(record.node, Event(record.time, Step.SILENT))
            case job.NodeFinished():
                self._note(record.node, Event(record.time, Step.FINISHED, record.round))
            case job.RoundFormed():
                self._form(record)
            case job.RoundBroken():
                self._end_round(record.time, record.reason)
            case job.Committed() if self._running is not None:
                self._running.last_commit = record.time
            case job.JobEnded():
                self._ended = record.time
                self._end_round(record.time, None)
                for node in self._there:
                    self._note(node, Event(record.time, Step.RELEASED))
            case job.JobReopened():  # They have not waited for that: the job was over, perhaps for days.
                for node in sorted(self._there):
                    self._go(node, self._ended)
            case job.WorkerFaulted() | job.FaultJudged() | job.HangSeen() | job.HangOver():
                self._note_fault(record)

    def _note(self, node: str, event: Event) -> None:
        self._nodes.setdefault(node, []).append(event)

    def _come(self, node: str, time: float) -> None:
        self._there.add(node)
        self._note(node, Event(time, Step.CAME))

    def _go(self, node: str, time: float) -> None:
        self._there.discard(node)
        self._appeared.discard(node)
        self._joined.pop(node, None)
        self._note(node, Event(time, Step.GONE))

    def _join(self, record: job.NodeJoined) -> None:
        """A node that has a seat asks for it again; one that waits repeats its request."""
        if record.node not in self._there:
            self._come(record.node, record.time)
        if record.node in self._joined or (self._running and record.node in self._running.members):
            return
        if record.node in self._appeared and self._nodes[record.node][-1].step is Step.CAME:
            self._begin_before(record)
        self._appeared.discard(record.node)
        self._joined[record.node] = record.time
        self._note(
            record.node,
            Event(record.time, Step.JOINED, checked_s=record.checked, prepared_s=record.prepared),
        )

    def _begin_before(self, record: job.NodeJoined) -> None:
        """A node that came by itself was there before it joined: it imported, and was checked."""
        events = self._nodes[record.node]
        began = record.time - max(record.prepared, record.checked)
        events[-1] = events[-1]._replace(time=max([began, *(event.time for event in events[-2:-1])]))

    def _form(self, record: job.RoundFormed) -> None:
        self._end_round(record.time, None)
        members = tuple(member.node for some in record.round.members.values() for member in some)
        last = max((self._joined.pop(node, record.time) for node in members), default=record.time)
        self._running = RoundLife(record.round.number, record.time, members, last_join=last)
        self._rounds[record.round.number] = self._running
        for node in members:
            self._there.add(node)
            self._note(node, Event(record.time, Step.SEATED, record.round.number))

    def _end_round(self, time: float, reason: job.Reason | None) -> None:
        round_before, self._running = self._running, None
        if round_before is None:
            return
        round_before.end, round_before.broken_by = time, reason
        if round_before.hangs and round_before.hangs[-1][1] == math.inf:
            round_before.hangs[-1] = round_before.hangs[-1][0], time
        for node in round_before.members:
            self._note(node, Event(time, Step.UNSEATED, round_before.number))

    def _note_fault(self, record: job.WorkerFaulted | job.FaultJudged | job.HangSeen | job.HangOver) -> None:
        life = self._rounds.get(record.round)
        if life is None:
            return
        match record:
            case job.WorkerFaulted():
                death = (record.died or record.time, record.time)
                life.death = min(life.death, death) if life.death else death
            case job.FaultJudged():
                life.judged = record.time
            case job.HangSeen():
                life.hangs.append((record.time - record.still_s, math.inf))
            case job.HangOver() if life.hangs:
                life.hangs[-1] = life.hangs[-1][0], record.time
