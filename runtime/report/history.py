"""From a job's records and telemetry to what happened: rounds, restarts with their cost, the curve of iterations.

Pure. Times are Unix seconds. A restart's cost counts from the fault to the first finished iteration that is later than
the last one finished before the fault.
"""

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

from everstep.runtime.job import records as job
from everstep.runtime.report.causes import Causes, death_time
from everstep.runtime.report.device_use import DeviceUse
from everstep.runtime.report.node_lives import LifeCollector, Lives, NodeRecord
from everstep.runtime.report.restores import StateRestored
from everstep.runtime.report.round_seconds import pace
from everstep.runtime.report.telemetry import Point, read_telemetry
from everstep.runtime.watch.host_use import HostUse

HistoryRecord = (
    job.MasterClaimed | job.HangExplained | job.SlowSeen | job.ShardPersisted | job.StateCertified | job.StateRejected
    | NodeRecord
)  # fmt: skip
"""The records that a history is made from."""
_NEEDED = (
    job.MasterClaimed,
    job.WorkerFaulted,
    job.FaultJudged,
    job.RoundBroken,
    job.HangSeen,
    job.HangExplained,
    job.NodeSuspected,
    job.JobReopened,
    job.JobEnded,
)
"""Of these the records that are kept whole."""
_SEEN_LATE = (job.Reason.NODE_LOST, job.Reason.NO_HEARTBEAT, job.Reason.SUSPECTED, job.Reason.DISCONNECTED)
"""Ends of a round that are noticed a while after the ranks stood still."""


@dataclass(frozen=True)
class RoundSpan:
    """A round, from its agreement to its end (None: still running)."""

    number: int
    begin: float
    end: float | None
    nodes: tuple[str, ...]
    reason: str
    restored: int | None
    """The iteration that it started from; None: from the beginning."""


@dataclass(frozen=True)
class Restart:
    """One round that ended before the job did, and what that cost."""

    time: float
    """Time of the fault."""
    round: int
    """The round that ended."""
    node: str
    """The node that failed or was lost; empty for growth and the like."""
    what: str
    """What died: `rank 1 of worker-1-0 (signal 9)`."""
    reason: str
    decision: str
    """What the next round was like: its size, and where the state came from."""
    seconds: float | None
    """None: training has not resumed yet."""
    lost: int | None
    """Iterations that were computed again; None: no round has followed yet."""
    error: str = ""
    cause: str = ""
    """The first cause, its evidence and echoes, whether a restart can help, what was done: one paragraph."""
    why: str = ""
    """What was decided about the fault, and why."""
    ended: tuple[tuple[str, int], ...] = ()
    """(node, rank) of all workers that ended, in that order."""

    @property
    def until(self) -> float | None:
        """When training had resumed."""
        return None if self.seconds is None else self.time + self.seconds


@dataclass(frozen=True)
class Attempt:
    """What the job did until it was stopped, or failed, and was started again."""

    end: float
    result: str
    reason: str
    iteration: int
    """The newest finished one."""
    resumed: float
    """When it was started again."""
    restored: int | None
    """The iteration that it then went on from, 0: the beginning; None: no round has followed yet."""

    @property
    def lost(self) -> int:
        """Iterations that were computed again."""
        return 0 if self.restored is None else max(self.iteration - self.restored, 0)


class Commit(NamedTuple):
    """A checkpoint that is whole in the store."""

    time: float
    round: int
    """The round that saved it."""
    iteration: int


class Judgement(NamedTuple):
    """What a comparison of a state's replicas gave."""

    is_sound: bool
    detail: str


@dataclass(frozen=True)
class History:
    """Everything that the report says about one job."""

    rounds: tuple[RoundSpan, ...] = ()
    restarts: tuple[Restart, ...] = ()
    points: tuple[Point, ...] = ()
    """Every finished iteration by time; a rolled-back iteration appears once per round."""
    takeovers: tuple[float, ...] = ()
    """When another master took over the job."""
    attempts: tuple[Attempt, ...] = ()
    """Those before the newest one."""
    commits: tuple[Commit, ...] = ()
    """The checkpoints in the store, by time."""
    intervals: tuple[tuple[int, str], ...] = ()
    """(iteration, text) of each change of the persist interval."""
    begin: float | None = None
    end: float | None = None
    """The job's end; None: it has not ended."""
    result: str = ""
    reason: str = ""
    error: str = ""
    newest: float = 0.0
    """The time of the newest record."""
    stored_bytes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By round and iteration: the size of its checkpoint in the store."""
    judgements: Mapping[tuple[int, int], Judgement] = field(default_factory=dict)
    """By round and iteration, of the states that were compared (certify_interval)."""
    states_restored: tuple[StateRestored, ...] = ()
    """What each round started from, as its ranks say; rounds without a word of them are left out."""
    slow: tuple[tuple[float, str], ...] = ()
    """(time, sentence) of each slow node that was seen in a round."""
    lives: Lives = field(default_factory=Lives)
    """What happened to each node."""
    is_launched: bool = False
    """Its nodes came by themselves: those of `everstep launch`, not of a pipeline's step."""
    devices: Mapping[str, DeviceUse] = field(default_factory=dict)
    """By node: how it used its devices, if their driver was asked."""
    hosts: Mapping[str, HostUse] = field(default_factory=dict)
    """By node: how much CPU, memory, disk and network it used."""

    @cached_property
    def curve(self) -> tuple[Point, ...]:
        """One point per iteration, in order: that of its latest round."""
        latest: dict[int, Point] = {}
        for point in self.points:
            if point.iteration not in latest or point.round >= latest[point.iteration].round:
                latest[point.iteration] = point
        return tuple(latest[iteration] for iteration in sorted(latest))


def history(records: Iterable[job.Record], telemetry: Iterable[Mapping[str, Any]]) -> History:
    """Fold a journal (in its order) and telemetry lines (in any order) into a history.

    Records other than `HistoryRecord`, and lines of other kinds, are skipped.
    """
    figures = read_telemetry(telemetry)
    points, commits = figures.points, list[Commit]()
    slow: list[tuple[float, str]] = []
    needed_records: list[job.Record] = []
    rounds_formed: list[_FormedRound] = []
    collector, newest, stored_bytes = LifeCollector(), 0.0, dict[tuple[int, int], int]()
    is_launched, judgements = False, dict[tuple[int, int], Judgement]()
    for record in records:
        collector.add(record)
        newest = record.time
        is_launched |= isinstance(record, job.NodeAppeared)
        if isinstance(record, job.ShardPersisted):
            place = record.holding.round, record.holding.iteration
            stored_bytes[place] = stored_bytes.get(place, 0) + record.holding.size
        elif isinstance(record, job.Committed):
            commits.append(Commit(record.time, record.round, record.iteration))
        elif isinstance(record, job.StateCertified | job.StateRejected):
            is_sound = isinstance(record, job.StateCertified)
            judgements[record.round, record.iteration] = Judgement(is_sound, sys.intern(record.detail))
        elif isinstance(record, job.SlowSeen):
            slow.append((record.time, record.detail))
        elif isinstance(record, job.RoundFormed):
            rounds_formed.append(_formed_round(record, rounds_formed[-1].nodes if rounds_formed else ()))
        elif isinstance(record, _NEEDED):
            needed_records.append(record)
    end_record = next((record for record in reversed(needed_records) if isinstance(record, job.JobEnded)), None)
    if end_record is not None and any(
        isinstance(r, job.JobReopened) for r in needed_records[needed_records.index(end_record) :]
    ):
        end_record = None
    begins = [record.time for record in (*needed_records[:1], *rounds_formed[:1])]
    return History(
        rounds=tuple(_rounds(rounds_formed, needed_records)),
        restarts=tuple(_restarts(needed_records, rounds_formed, points, end_record)),
        points=tuple(points),
        takeovers=tuple(_takeovers(needed_records)),
        attempts=tuple(_attempts(needed_records, rounds_formed, points)),
        commits=tuple(commits),
        intervals=figures.intervals,
        begin=min(begins) if begins else (points[0].time - points[0].seconds if points else None),
        end=end_record.time if end_record else None,
        result=end_record.result.value if end_record else "",
        reason=end_record.reason if end_record else "",
        error=end_record.error if end_record else "",
        newest=newest,
        stored_bytes=stored_bytes,
        judgements=judgements,
        states_restored=figures.states_restored,
        slow=tuple(slow),
        lives=collector.lives(),
        is_launched=is_launched,
        devices=figures.devices,
        hosts=figures.hosts,
    )


class _FormedRound(NamedTuple):
    """The part of a RoundFormed that is kept: a month of whole records would fill the memory."""

    time: float
    number: int
    nodes: tuple[str, ...]
    reason: str
    restored: int | None
    in_memory: bool
    """The state can also be restored from a node's memory."""


def _formed_round(record: job.RoundFormed, before: tuple[str, ...]) -> _FormedRound:
    """`before`: the nodes of the previous round; most rounds have the same ones."""
    round_, restore = record.round, record.round.restore
    nodes = tuple(member.node for members in round_.members.values() for member in members)
    restored_iteration = restore.iteration if restore else None
    in_memory = restore is not None and any(source.node for source in restore.sources)
    same = before if nodes == before else tuple(map(sys.intern, nodes))
    return _FormedRound(record.time, round_.number, same, round_.reason, restored_iteration, in_memory)


def _takeovers(records: Iterable[job.Record]) -> Iterator[float]:
    """When a master took over from another one. The first one, or one of a job that has ended, takes over nothing."""
    is_living = False
    for record in records:
        match record:
            case job.MasterClaimed():
                if is_living:
                    yield record.time
                is_living = True
            case job.JobEnded():
                is_living = False


def _attempts(
    records: Iterable[job.Record], rounds_formed: Sequence[_FormedRound], points: Sequence[Point]
) -> Iterator[Attempt]:
    end_record: job.JobEnded | None = None
    for record in records:
        if isinstance(record, job.JobEnded):
            end_record = record
        elif isinstance(record, job.JobReopened) and end_record is not None:
            at = end_record.time
            iterations_done = max((point.iteration for point in points if point.time <= at), default=0)
            following = next((round_ for round_ in rounds_formed if round_.time >= record.time), None)
            restored_iteration = None if following is None else following.restored or 0
            yield Attempt(
                at,
                end_record.result.value,
                end_record.reason,
                max(iterations_done, restored_iteration or 0),
                record.time,
                restored_iteration,
            )
            end_record = None


def _rounds(rounds_formed: Sequence[_FormedRound], records: Sequence[job.Record]) -> Iterator[RoundSpan]:
    """A round ends when it is broken, the job ends, or the next round is formed, whichever comes first."""
    broken_at = {record.round: record.time for record in records if isinstance(record, job.RoundBroken)}
    over = sorted(record.time for record in records if isinstance(record, job.JobEnded))
    for round_, following in zip_longest(rounds_formed, rounds_formed[1:]):
        ends = [broken_at.get(round_.number), following.time if following else None]
        ends += over[bisect_left(over, round_.time) :][:1]
        end = min((time for time in ends if time is not None), default=None)
        yield RoundSpan(round_.number, round_.time, end, round_.nodes, round_.reason, round_.restored)


def _restarts(
    records: Sequence[job.Record],
    rounds_formed: Sequence[_FormedRound],
    points: Iterable[Point],
    end_record: job.JobEnded | None,
) -> list[Restart]:
    broken_rounds = [record for record in records if isinstance(record, job.RoundBroken)]
    causes = Causes(records)
    trained_until, numbers = _PointsByRound(points), [record.number for record in rounds_formed]
    began = [_began(record, causes, trained_until.of(record.round)) for record in broken_rounds]
    restarts = []
    for index, record in enumerate(broken_rounds):
        fault, silent = causes.first_fault(record.round), causes.silent_node(record)
        time = began[index]
        last = max(trained_until.newest(record.round, time), record.iteration, 0)
        at = bisect_right(numbers, record.round)
        following = rounds_formed[at] if at < len(rounds_formed) else None
        restored_iteration = following.restored or 0 if following else 0
        until = trained_until.time_passed(record.round, last)
        if until is None and end_record is not None and end_record.result == job.JobResult.SUCCEEDED:
            until = end_record.time
        if index + 1 < len(broken_rounds):
            until = min(until or math.inf, began[index + 1])
        restarts.append(
            Restart(
                time=time,
                round=record.round,
                node=silent.node if silent else record.node or (fault.node if fault else ""),
                what=f"node {silent.node}" if silent else _description(record, fault),
                reason=job.Reason.SUSPECTED.value if silent else _reason(record, fault).value,
                decision=(decision := _decision(following, rounds_formed[at - 1] if at else None, trained_until)),
                seconds=None if until is None else max(until - time, 0.0),
                lost=None if following is None else max(last - restored_iteration, 0),
                error=fault.error if fault else "",
                cause=causes.paragraph(record, decision),
                why=causes.judgement(record.round),
                ended=causes.ends(record.round),
            )
        )
    return restarts


def _began(record: job.RoundBroken, causes: Causes, points: Sequence[Point]) -> float:
    """When what ended the round happened; of what nobody saw, when the next iteration was due. `points`: the
    round's."""
    if (fault := causes.first_fault(record.round)) is not None:
        return min(record.time, death_time(fault))
    if (hung_since := causes.hung_since(record)) is not None:
        return hung_since
    if record.reason in _SEEN_LATE and points and (usual := pace(points)) > 0:
        finished_since = max(record.iteration - points[-1].iteration, 0)
        return min(record.time, points[-1].time + (finished_since + 1) * usual)
    return record.time


def _reason(record: job.RoundBroken, fault: job.WorkerFaulted | None) -> job.Reason:
    """Of a failed connection that of the fault from which it follows, if one was told."""
    return fault.reason if fault is not None and record.reason is job.Reason.DISCONNECTED else record.reason


class _PointsByRound:
    """The points by round, so that a restart does not scan all of them. `points` are ordered by time."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._rounds: dict[int, list[Point]] = {}
        for point in points:
            self._rounds.setdefault(point.round, []).append(point)
        self._numbers = sorted(self._rounds)
        self._most = [max(point.iteration for point in self._rounds[number]) for number in self._numbers]
        self._until = list(accumulate(self._most, max, initial=0))
        self._from = list(accumulate(reversed(self._most), max, initial=0))[::-1]

    def of(self, number: int) -> Sequence[Point]:
        """The points of that round."""
        return self._rounds.get(number, ())

    def newest(self, number: int, until: float) -> int:
        """The newest iteration finished by then in rounds up to that one; 0 if there is none."""
        before = self._until[bisect_left(self._numbers, number)]
        return max([before, *(p.iteration for p in self._rounds.get(number, ()) if p.time <= until)])

    def time_passed(self, number: int, iteration: int) -> float | None:
        """When a later round finished a later iteration; None: none has."""
        at = bisect_right(self._numbers, number)
        if self._from[at] <= iteration:
            return None
        later = next(place for place in range(at, len(self._numbers)) if self._most[place] > iteration)
        return next(point.time for point in self._rounds[self._numbers[later]] if point.iteration > iteration)


def _description(round_broken: job.RoundBroken, fault: job.WorkerFaulted | None) -> str:
    if fault is not None and fault.node in ("", round_broken.node or fault.node):
        how = f"signal {-fault.exit_code}" if fault.exit_code < 0 else f"exit code {fault.exit_code}"
        return f"rank {fault.rank} on {fault.node} ({how})"
    if round_broken.node:
        return f"node {round_broken.node}"
    return round_broken.detail or "nothing; membership changed"


def _decision(following: _FormedRound | None, before: _FormedRound | None, points: _PointsByRound) -> str:
    if following is None:
        return "no round followed yet"
    now = len(following.nodes)
    was = len(before.nodes) if before else now
    size = f"{now} node{'' if now == 1 else 's'}" + (f" (before: {was})" if was != now else "")
    if following.restored is None:
        own = next((point.iteration - point.count for point in points.of(following.number)), 0)
        start = f"iteration {own} from the script's own state" if own > 0 else "from the beginning"
        return f"round {following.number}, {size}, {start}"
    place = "memory" if following.in_memory else "the store"
    return f"round {following.number}, {size}, iteration {following.restored} from {place}"
