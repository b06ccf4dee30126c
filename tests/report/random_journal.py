"""Random journals of whole seconds, with their telemetry: nodes come, join, train, hang, fail, go."""

import random
from typing import Any

from everstep.runtime.job import records as job
from everstep.runtime.protocol.rounds import Member, Round


class RandomJournal:
    """A job that does at each moment one of the things that it may do then."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.time = self._chance.randint(0, 3)
        self.records: list[job.Record] = [job.MasterClaimed(time=self.time, epoch=1, address="a:1")]
        self.lines: list[dict[str, Any]] = []
        self._coming: list[str] = []
        self._joined: list[str] = []
        self._members: list[str] = []
        self._finished: set[str] = set()
        self._gone: set[str] = set()
        self._round = self._iteration = self._nodes = self._newest = 0
        self._is_hanging = self._is_over = False
        for _ in range(self._chance.randint(5, 60)):
            self.time += self._chance.choice((0, 0, 1, 1, 2, 5))
            if self._is_over:
                break
            self._chance.choice(self._choices())()
        self.end = self.time + self._chance.randint(1, 5)

    def _choices(self) -> list[Any]:
        choices = [self._request, self._appear] * (1 if self._nodes < 4 else 0)
        choices += [self._join] * (4 if self._coming else 0)
        choices += [self._form] * (4 if self._joined and not self._members else 0)
        if self._members:
            choices += [self._iterate] * 12 + [self._fault, self._break, self._hang, self._finish, self._commit]
            choices += [self._lose, self._release, self._silence]
        return choices + ([self._end_job] if self._nodes else []) or [self._request]

    def _request(self) -> None:
        name = f"worker-{self._nodes}-0"
        self._nodes += 1
        self._coming.append(name)
        self.records.append(
            job.NodeRequested(time=self.time, node=name, role="worker", index=self._nodes, launch=0, host="")
        )

    def _appear(self) -> None:
        """A node comes by itself: that is noted when it joins."""
        name = f"worker-{self._nodes}-0"
        self._nodes += 1
        self.records.append(job.NodeAppeared(time=self.time, node=name, role="worker", index=self._nodes, host=""))
        self._let_join(name)

    def _join(self) -> None:
        name = self._chance.choice(self._coming)
        self._coming.remove(name)
        self._let_join(name)

    def _let_join(self, name: str) -> None:
        self._joined.append(name)
        checked, prepared = float(self._chance.randint(0, 3)), float(self._chance.choice((0, 0, 1, 4)))
        self.records.append(
            job.NodeJoined(
                time=self.time, node=name, host="", slots=1, address="", master_port=1, holdings=(), after_round=0,
                checked=checked, prepared=prepared,
            )
        )  # fmt: skip

    def _form(self) -> None:
        count = self._chance.randint(1, len(self._joined))
        self._members, self._joined = self._joined[:count], self._joined[count:]
        self._round += 1
        self._finished = set()
        self._iteration = max(self._iteration - self._chance.choice((0, 0, 1, 3)), 0)
        members = tuple(Member(name, "", "", 1) for name in self._members)
        self.records.append(
            job.RoundFormed(time=self.time, round=Round(self._round, {"worker": members}, "", 1, None, ""))
        )
        self._trained = 0

    def _iterate(self) -> None:
        count, each_s = self._chance.choice((1, 1, 1, 2, 3)), self._chance.randint(1, 4)
        stall, evaluation = self._chance.choice((0, 0, 1)), int(each_s == 3)
        seconds = count * each_s + stall + evaluation
        self.time += seconds
        self._iteration += count
        line = {
            "time": self.time, "round": self._round, "iteration": self._iteration, "rank": 0, "seconds": seconds,
            "stall_s": stall, "evaluation_s": evaluation,
        }  # fmt: skip
        if count > 1:
            line["iterations"] = count
        if not self._trained and self._chance.random() < 0.5:
            line["restore_s"] = 1
        self._trained += 1
        self.lines.append(line)

    def _fault(self) -> None:
        died = max(self.time - self._chance.randint(0, 2), 1)
        number, node = self._round, self._members[0]
        is_late = self._chance.random() < 0.3
        if is_late:  # The others have told before that they lost their connections.
            self._break(job.Reason.DISCONNECTED)
            self.time += self._chance.randint(0, 2)
        self.records.append(
            job.WorkerFaulted(
                time=self.time, node=node, round=number, rank=0, local_rank=0, exit_code=1,
                iteration=self._iteration, reason=job.Reason.KILLED, died=died,
            )
        )  # fmt: skip
        self.time += self._chance.randint(0, 2)
        judged = self._chance.random() < 0.5
        if not is_late:
            self._break(job.Reason.KILLED)
        if judged:
            self.time += self._chance.randint(0, 2)
            self.records.append(
                job.FaultJudged(
                    time=self.time, node=node, reason=job.Reason.KILLED, decision=job.Decision.RESTART, detail="",
                    round=number,
                )
            )  # fmt: skip

    def _break(self, reason: job.Reason | None = None) -> None:
        reason = reason or self._chance.choice((job.Reason.NODE_LOST, job.Reason.GROW, job.Reason.HANG))
        self.records.append(job.RoundBroken(time=self.time, round=self._round, reason=reason, detail=""))
        self._coming += [name for name in self._members if name not in self._gone]
        self._members, self._is_hanging = [], False

    def _hang(self) -> None:
        if self._is_hanging:
            self.records.append(job.HangOver(time=self.time, round=self._round))
        else:
            still = self._chance.randint(1, 5)
            self.records.append(job.HangSeen(time=self.time, round=self._round, still_s=still))
        self._is_hanging = not self._is_hanging

    def _finish(self) -> None:
        members_left = [name for name in self._members if name not in self._finished | self._gone]
        if members_left:
            self._finished.add(members_left[0])
            self.records.append(job.NodeFinished(time=self.time, node=members_left[0], round=self._round))

    def _commit(self) -> None:
        self.records.append(job.Committed(time=self.time, round=self._round, iteration=self._iteration, key=""))

    def _lose(self) -> None:
        name = self._chance.choice(self._members)
        if name not in self._gone:
            self._gone.add(name)
            self.records.append(job.NodeLost(time=self.time, node=name, reason=job.Reason.NODE_LOST))

    def _silence(self) -> None:
        """A member answers nobody: the round ends, and the node comes back, is lost, or neither so far."""
        name = self._chance.choice(self._members)
        if name in self._gone:
            return
        number = self._round
        self._break(job.Reason.SUSPECTED)
        self.records.append(job.NodeSuspected(time=self.time, node=name, round=number, by=("worker-9-0",)))
        if self._chance.random() < 0.5:
            self.time += self._chance.randint(0, 5)
            self._gone.add(name)
            self._coming.remove(name)
            self.records.append(job.NodeLost(time=self.time, node=name, reason=job.Reason.NO_HEARTBEAT))

    def _release(self) -> None:
        name = self._chance.choice(self._members)
        if name not in self._gone:
            self._gone.add(name)
            self.records.append(job.NodeReleased(time=self.time, node=name, reason=job.Reason.SCALED))

    def _end_job(self) -> None:
        self.records.append(job.JobEnded(time=self.time, result=job.JobResult.SUCCEEDED, reason=""))
        self._is_over = True
