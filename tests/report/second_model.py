"""A model of the ledger that looks at one second of one node after the other, as issue and docs describe the classes.

Slow and simple on purpose: it shares nothing with `everstep.runtime.report` but the names of the classes. All times are
whole seconds.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from everstep.runtime.job import records as job
from everstep.runtime.report.activity import Activity

Lines = Sequence[Mapping[str, Any]]


def _training_s(line: Mapping[str, Any]) -> float:
    """What one of the line's iterations took, without what was no training."""
    return (line["seconds"] - line["stall_s"] - line.get("evaluation_s", 0)) / line.get("iterations", 1)


class Model:
    """What each second of each node was spent on, by looking at all records each time."""

    def __init__(self, records: Sequence[job.Record], lines: Lines, begin: int, end: int) -> None:
        self.records, self.lines, self.begin, self.end = records, lines, begin, end
        self.rounds = {record.round.number: record for record in records if isinstance(record, job.RoundFormed)}

    def nodes(self) -> list[str]:
        node_names = [
            record.node for record in self.records if isinstance(record, job.NodeRequested | job.NodeAppeared)
        ]
        return list(dict.fromkeys(node_names))

    def seconds(self, node: str) -> list[Activity | None]:
        """Of each second from begin to end; None: the node was not there."""
        return [self.at(node, second + 0.5) for second in range(self.begin, self.end)]

    def _of(self, kind: type, until: float, **fields: object) -> list[Any]:
        return [
            record
            for record in self.records
            if isinstance(record, kind)
            and record.time < until
            and all(getattr(record, name) == value for name, value in fields.items())
        ]

    def members(self, number: int) -> list[str]:
        return [member.node for member in self.rounds[number].round.members["worker"]]

    def over(self, number: int) -> float:
        """When that round was over."""
        place = self._place_of_end(number)
        return float("inf") if place is None else self.records[place].time

    def _place_of_end(self, number: int) -> int | None:
        for place, record in enumerate(self.records):
            if record.time >= self.rounds[number].time and (
                isinstance(record, job.JobEnded) or (isinstance(record, job.RoundBroken) and record.round == number)
            ):
                return place
        return None

    def _joins_after(self, node: str, number_left: int) -> list[job.NodeJoined]:
        """Its joins after the end of that round; all, if it was in none (0)."""
        place = (self._place_of_end(number_left) or 0) if number_left else 0
        return [record for record in self.records[place:] if isinstance(record, job.NodeJoined) and record.node == node]

    def at(self, node: str, t: float) -> Activity | None:
        came = self._of(job.NodeRequested, t, node=node) or self._appeared(node, t)
        loss_record = self._of(job.NodeLost, t, node=node)
        first = min(self.rounds, default=0)
        if not came:
            # The nodes of the first round (all, if none was formed) count from the beginning.
            is_early = not first or node in self.members(first)
            return Activity.WAITING if is_early else None
        if loss_record:
            return None
        if self._of(job.NodeReleased, t, node=node) or self._job_is_over(t):
            return Activity.IDLE
        for number in self.rounds:
            if node in self.members(number) and self.rounds[number].time < t < self.over(number):
                if self._of(job.NodeFinished, t, node=node, round=number):
                    return Activity.IDLE
                return self._in_round(number, t)
        return self._between(node, t)

    def _appeared(self, node: str, t: float) -> bool:
        """Whether a node that came by itself was there: it was before it joined."""
        if not self._of(job.NodeAppeared, float("inf"), node=node):
            return False
        join = self._of(job.NodeJoined, float("inf"), node=node)[0]
        return join.time - max(join.checked, join.prepared) < t

    def _job_is_over(self, t: float) -> bool:
        return bool(self._of(job.JobEnded, t))

    def _between(self, node: str, t: float) -> Activity:
        rounds_left = [n for n in self.rounds if node in self.members(n) and self.over(n) < t]
        joins = self._joins_after(node, max(rounds_left, default=0))
        joined = [join for join in joins if join.time < t]
        following = [n for n, round_ in self.rounds.items() if round_.time > t and node in self.members(n)]
        if joined:
            if not following:
                return Activity.WAITING
            number = min(following)
            last = max(self._join_before(member, number) for member in self.members(number))
            return Activity.RENDEZVOUS if t > last else Activity.WAITING
        if not rounds_left:
            if joins and t > joins[0].time - joins[0].checked:
                return Activity.CHECK
            return Activity.STARTUP if joins and t > joins[0].time - joins[0].prepared else Activity.WAITING
        if self._of(job.NodeSuspected, t, node=node, round=max(rounds_left)):
            return Activity.STARTUP if joins and t > joins[0].time - joins[0].prepared else Activity.DETECT
        judged = [record.time for record in self._of(job.FaultJudged, float("inf"), round=max(rounds_left))]
        if judged and t < max(judged):
            return Activity.DECIDE
        return Activity.STARTUP if joins and t > joins[0].time - joins[0].prepared else Activity.RENDEZVOUS

    def _join_before(self, node: str, number: int) -> float:
        """When it joined that round: its first join since it left the one before."""
        rounds_left = [n for n in self.rounds if node in self.members(n) and n < number]
        formed = self.rounds[number].time
        joins = [
            record.time for record in self._joins_after(node, max(rounds_left, default=0)) if record.time <= formed
        ]
        return joins[0] if joins else formed

    def points(self, number: int) -> list[Mapping[str, Any]]:
        return sorted((line for line in self.lines if line["round"] == number), key=lambda line: line["time"])

    def _in_round(self, number: int, t: float) -> Activity:
        over = self.over(number)
        for hang_record in self._of(job.HangSeen, float("inf"), round=number):
            later = self.records[self.records.index(hang_record) :]
            moves = [record.time for record in later if isinstance(record, job.HangOver) and record.round == number]
            if hang_record.time - hang_record.still_s < t < min([over, *moves]):
                return Activity.HUNG
        points = self.points(number)
        died, detected_at = self._death(number)
        if not points:
            return self._after(t, died, detected_at, Activity.STARTUP, number, None)
        first = points[0]["time"] - points[0]["seconds"]
        if t < first:
            return Activity.RESTORE if t > first - points[0].get("restore_s", 0) else Activity.STARTUP
        for at, point in enumerate(points):
            if t < point["time"]:
                begin = points[at - 1]["time"] if at else max(first, self.rounds[number].time)
                return self._in_iteration(points, at, begin, t)
        others = [_training_s(earlier) for earlier in points[1:20]]
        pace = median_low(others) if others else _training_s(points[0])
        return self._after(t, died, detected_at, Activity.RECOMPUTED, number, points[-1]["time"] + pace)

    def _in_iteration(self, points: Lines, at: int, begin: float, t: float) -> Activity:
        point = points[at]
        if t > point["time"] - point["stall_s"]:
            return Activity.SAVE
        others, count = [_training_s(earlier) for earlier in points[1:20]], point.get("iterations", 1)
        if at == 0 and others and t < begin + count * (_training_s(point) - median_low(others)):
            return Activity.COMPILE
        if t > point["time"] - point["stall_s"] - point.get("evaluation_s", 0):
            return Activity.EVALUATION
        before = max((line["iteration"] for line in self.lines if line["round"] < point["round"]), default=0)
        trained_at = point["time"] - point["stall_s"] - point.get("evaluation_s", 0)
        following = int((trained_at - t) // _training_s(point))
        iteration = max(point["iteration"] - following, point["iteration"] - count + 1)
        return Activity.RECOMPUTED if iteration <= before else Activity.PRODUCTIVE

    def _death(self, number: int) -> tuple[float | None, float]:
        """(When the first worker died, when that was known) in that round."""
        faults = self._of(job.WorkerFaulted, float("inf"), round=number)
        if not faults:
            return None, 0.0
        first = min(faults, key=lambda fault: fault.died)
        return first.died, first.time

    def _after(
        self, t: float, died: float | None, detected_at: float, before: Activity, number: int, unfinished: float | None
    ) -> Activity:
        """After the last iteration, or in a round without any."""
        broken = self._of(job.RoundBroken, float("inf"), round=number)
        if not broken:
            commits = [record.time for record in self._of(job.Committed, self.over(number) + 0.1)]
            if before is Activity.STARTUP:
                return Activity.STARTUP
            return Activity.SAVE if any(time > t for time in commits) else Activity.OTHER
        if died is not None:
            return before if t < died else Activity.DETECT if t < detected_at else Activity.DECIDE
        if broken[0].reason in (job.Reason.GROW, job.Reason.SCALED, job.Reason.PREEMPTED) or unfinished is None:
            return before
        return before if t < unfinished else Activity.DETECT
