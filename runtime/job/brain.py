"""The brain: events in, decisions out, in virtual or real time.

`handle` turns an event into records (to be journaled in this order before anything is done about them) and advances
the state by them. Everything else (seats, directives, nodes wanted) follows from a state. Only what needs no journal
is kept besides: when each node was last heard of, and how far it says it is.
"""

from dataclasses import dataclass

from runtime.job import policy, rounds, sizes
from runtime.job.events import (
    Event,
    HeartbeatSeen,
    Joined,
    ManifestWritten,
    NodeCreated,
    NodeFinishedRound,
    NodeGone,
    Opened,
    ScaleAsked,
    ShardStored,
    StopAsked,
    Tick,
    WorkerExited,
)
from runtime.job.messages import Finished, Heartbeat, Holding, Join, Persisted, WorkerExit
from runtime.job.policy import Decision as Fate
from runtime.job.records import (
    Committed,
    DesiredChanged,
    JobEnded,
    JobReopened,
    JobResult,
    NodeFinished,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Reason,
    Record,
    RoundBroken,
    RoundFormed,
    ShardPersisted,
    WorkerFaulted,
)
from runtime.job.spec import JobSpec
from runtime.job.state import JobPhase, NodePhase, State, apply, member_names


@dataclass(frozen=True)
class Journal:
    """Write this record; act on what follows from it only when it is durable."""

    record: Record


@dataclass(frozen=True)
class WriteManifest:
    """All shards of (round, iteration) are in the store: make the checkpoint visible, then tell ManifestWritten."""

    round: int
    iteration: int
    world_size: int
    shards: tuple[Holding, ...]


Decision = Journal | WriteManifest


class Refused(ValueError):  # noqa: N818 (a name that reads well in `except`)
    """The one who asked is told no; the text says why."""


class UnknownNode(Refused):
    """The node has no place in this job (any more): it shall end."""


_JOINED = frozenset({NodePhase.WAITING, NodePhase.RUNNING, NodePhase.FINISHED, NodePhase.REJOINING})


class Brain:
    """Decides for one job. Never asks for the time: each event brings its own, and a clock that jumps back is held."""

    def __init__(self, spec: JobSpec, state: State, now: float) -> None:
        self.spec = spec
        self.state = state
        self.reason = state.reason
        """Why nothing more is being done right now, in one line."""
        self._now = max(now, state.time)
        self._heard: dict[str, float] = {}
        self._iterations: dict[str, int] = {}
        self._committing: set[tuple[int, int]] = set()
        self._decisions: list[Decision] = []
        self._deadline: float | None = None
        self._rearm()

    def handle(self, event: Event, now: float) -> list[Decision]:
        """What follows from the event. Raises Refused (and decides nothing) for what may not be asked."""
        before, self._now = self._now, max(now, self._now, self.state.time)
        if self._now - before > self.spec.patience.silence_s / 2:
            # The master itself was away (stopped, suspended): silence proves nothing about the nodes.
            self._rearm()
        self._decisions = []
        match event:
            case Opened():
                self._opened()
            case Joined(join):
                self._joined(join)
            case HeartbeatSeen(heartbeat):
                self._heartbeat(heartbeat)
            case WorkerExited(exit_):
                self._worker_exited(exit_)
            case NodeFinishedRound(finished):
                self._node_finished(finished)
            case ShardStored(persisted):
                self._persisted(persisted)
            case ManifestWritten(round_, iteration, key):
                self._committing.discard((round_, iteration))
                self._record(Committed(time=self._now, round=round_, iteration=iteration, key=key))
            case NodeCreated(node):
                self._heard[node] = self._now
            case NodeGone(node, detail, exit_code):
                self._lose(node, Reason.NODE_LOST, detail, exit_code)
            case ScaleAsked(role, nodes):
                self._scale(role, nodes)
            case StopAsked(reason):
                self._end(JobResult.STOPPED, reason, exit_code=143)
            case Tick():
                pass
        self._settle()
        return self._decisions

    def next_deadline(self) -> float | None:
        """When to send a Tick although nothing happened; None: never.

        While nodes live it is never far away, so that a gap between two calls tells that the master was away.
        """
        return self._deadline

    def _record(self, record: Record) -> None:
        self.state = apply(self.state, record)
        self._decisions.append(Journal(record))

    def _rearm(self) -> None:
        self._heard = dict.fromkeys(self.state.nodes, self._now)

    def _opened(self) -> None:
        ended = self.state.ended
        if ended and ended.result is not JobResult.SUCCEEDED:
            self._record(JobReopened(time=self._now))

    def _joined(self, join: Join) -> None:
        node = self.state.nodes.get(join.node)
        if node is None or node.phase in (NodePhase.LOST, NodePhase.RELEASED):
            raise UnknownNode(f"{join.node} has no place in job {self.spec.job}" + (f": {node.phase}" if node else ""))
        if node.role != join.role:
            raise UnknownNode(f"{join.node} is a {node.role} node of job {self.spec.job}, not {join.role}")
        current = self.state.round.number if self.state.round else 0
        if join.after_round > current:
            raise UnknownNode(f"{join.node} comes from round {join.after_round}, job {self.spec.job} is at {current}")
        self._heard[join.node] = self._now
        if node.phase in (NodePhase.RUNNING, NodePhase.FINISHED):
            if join.after_round < current:
                return  # It has its seat already and asks again.
            self._break(Reason.REJOINED, f"{join.node} left round {current} and joined again", join.node)
        fresh = NodeJoined(
            time=self._now, node=join.node, host=join.host, slots=join.slots, address=join.address,
            master_port=join.master_port, holdings=join.holdings, after_round=join.after_round,
        )  # fmt: skip
        if node.phase is NodePhase.WAITING:
            same = (node.slots, node.address, node.master_port, node.holdings, node.host)
            if same == (join.slots, join.address, join.master_port, join.holdings, join.host):
                return
        self._record(fresh)

    def _heartbeat(self, heartbeat: Heartbeat) -> None:
        if heartbeat.node not in self.state.nodes:
            raise UnknownNode(f"{heartbeat.node} is no node of job {self.spec.job}")
        self._heard[heartbeat.node] = self._now
        if self.state.round and heartbeat.round == self.state.round.number:
            known = self._iterations.get(heartbeat.node, 0)
            self._iterations[heartbeat.node] = max(known, heartbeat.iteration)

    def _worker_exited(self, exit_: WorkerExit) -> None:
        node = self.state.nodes.get(exit_.node)
        if node is None:
            raise UnknownNode(f"{exit_.node} is no node of job {self.spec.job}")
        self._heard[exit_.node] = self._now
        current = self.state.round
        if current is None or exit_.round != current.number or self.state.phase is JobPhase.ENDED:
            return
        if exit_.node not in member_names(current):
            return
        if node.phase not in (NodePhase.RUNNING, NodePhase.REJOINING, NodePhase.WAITING):
            return
        self._iterations[exit_.node] = max(self._iterations.get(exit_.node, 0), exit_.iteration)
        reason = policy.reason_of(exit_.exit_code)
        fault = WorkerFaulted(
            time=self._now, node=exit_.node, round=exit_.round, rank=exit_.rank, local_rank=exit_.local_rank,
            exit_code=exit_.exit_code, iteration=exit_.iteration, reason=reason, error=exit_.error, died=exit_.time,
        )  # fmt: skip
        self._record(fault)
        if self.state.phase is JobPhase.RUNNING:
            self._break(reason, policy.told(fault), exit_.node)
        fate = policy.DECISIONS[reason]
        if fate is not Fate.RESTART:
            avoid = fate is Fate.RELAUNCH_ELSEWHERE
            self._record(NodeReleased(time=self._now, node=exit_.node, reason=reason, avoid=avoid))

    def _node_finished(self, finished: Finished) -> None:
        node = self.state.nodes.get(finished.node)
        if node is None:
            raise UnknownNode(f"{finished.node} is no node of job {self.spec.job}")
        self._heard[finished.node] = self._now
        current = self.state.round
        if node.phase is NodePhase.RUNNING and current and finished.round == current.number:
            self._record(NodeFinished(time=self._now, node=finished.node, round=finished.round))

    def _persisted(self, persisted: Persisted) -> None:
        if persisted.node not in self.state.nodes:
            raise UnknownNode(f"{persisted.node} is no node of job {self.spec.job}")
        self._heard[persisted.node] = self._now
        held = persisted.holding
        current = self.state.round.number if self.state.round else 0
        if not held.key or not 0 <= held.shard < held.shards or not 0 < held.round <= current:
            raise Refused(f"{persisted.node} persisted no shard of this job: {held.key!r} of round {held.round}")
        known = self.state.checkpoints.get((held.round, held.iteration))
        if known is None or all(shard.shard != held.shard for shard in known.shards):
            self._record(ShardPersisted(time=self._now, holding=held))

    def _scale(self, role: str, nodes: int) -> None:
        asked = self.spec.roles.get(role)
        if asked is None:
            raise Refused(f"role: the job has no {role!r}, only {', '.join(self.spec.roles)}")
        if not asked.min_nodes <= nodes <= asked.nodes:
            raise Refused(f"nodes: {nodes} is not between {asked.min_nodes} and {asked.nodes}, the bounds of {role}")
        if self.state.phase is JobPhase.ENDED:
            raise Refused(f"the job has ended: {self.state.reason}")
        if nodes != sizes.size(self.state, self.spec, role):
            self._record(DesiredChanged(time=self._now, role=role, nodes=nodes))

    def _lose(self, name: str, reason: Reason, detail: str, exit_code: int | None = None) -> None:
        node = self.state.nodes.get(name)
        if node is None or node.phase is NodePhase.LOST:
            return
        self._record(NodeLost(time=self._now, node=name, reason=reason, detail=detail, exit_code=exit_code))
        if node.phase is NodePhase.RUNNING and self.state.phase is JobPhase.RUNNING:
            self._break(reason, f"{name}: {reason.value}" + (f" ({detail})" if detail else ""), name)

    def _break(self, reason: Reason, detail: str, node: str = "") -> None:
        current = self.state.round
        assert current is not None, "only a running round can be broken"
        iteration = max(self._iterations.values(), default=0)
        self._record(
            RoundBroken(
                time=self._now, round=current.number, reason=reason, detail=detail, node=node, iteration=iteration
            )
        )

    def _end(self, result: JobResult, reason: str, error: str = "", exit_code: int = 0) -> None:
        if self.state.phase is not JobPhase.ENDED:
            iteration = max([self.state.iteration, *self._iterations.values()])
            self._record(
                JobEnded(
                    time=self._now, result=result, reason=reason, error=error, iteration=iteration, exit_code=exit_code
                )
            )

    def _settle(self) -> None:
        """Everything that follows from the state and the time, until nothing more does."""
        while True:
            before = self.state
            self._commit()
            self._expire()
            self._resize()
            self._succeed()
            verdict = self._regroup()
            if self.state is before:
                break
        self.reason = verdict.reason
        self._deadline = self._next(verdict.deadline)

    def _commit(self) -> None:
        for key, checkpoint in self.state.checkpoints.items():
            shards = checkpoint.shards
            if checkpoint.manifest or key in self._committing or not shards or len(shards) < shards[0].shards:
                continue
            self._committing.add(key)
            world = self.state.worlds.get(key[0], 0)
            self._decisions.append(WriteManifest(key[0], key[1], world, tuple(sorted(shards, key=lambda s: s.shard))))

    def _silences(self) -> list[tuple[float, str, Reason]]:
        """(deadline, node, reason) of every node that may fall silent."""
        if self.state.phase is JobPhase.ENDED:
            return []
        patience = self.spec.patience
        found = []
        for node in self.state.nodes.values():
            if node.phase in _JOINED:
                found.append((self._heard.get(node.name, 0.0) + patience.silence_s, node.name, Reason.NO_HEARTBEAT))
            elif node.phase is NodePhase.REQUESTED:
                since = max(node.requested_at, self._heard.get(node.name, 0.0))
                found.append((since + patience.join_timeout_s, node.name, Reason.NEVER_JOINED))
        return found

    def _expire(self) -> None:
        for deadline, name, reason in self._silences():
            if self._now >= deadline:
                self._lose(name, reason, "")

    def _resize(self) -> None:
        if self.state.phase is JobPhase.ENDED:
            return
        for released in sizes.surplus(self.state, self.spec, self._now):
            members = member_names(self.state.round)
            if self.state.phase is JobPhase.RUNNING and released.node in members:
                self._break(Reason.SCALED, f"scaled down: {released.node} leaves", released.node)
            self._record(released)
        for request in sizes.missing(self.state, self.spec, self._now):
            self._heard[request.node] = self._now
            self._record(request)

    def _succeed(self) -> None:
        if self.state.phase is JobPhase.RUNNING and member_names(self.state.round) <= self.state.finished:
            self._end(JobResult.SUCCEEDED, f"all {len(self.state.finished)} nodes finished")

    def _regroup(self) -> rounds.Verdict:
        verdict = rounds.decide(self._now, self.state, self.spec)
        forming = self.state.phase is JobPhase.FORMING
        back = not any(node.phase is NodePhase.REJOINING for node in self.state.nodes.values())
        if forming and (back or verdict.step is not rounds.Step.WAIT):
            end = policy.verdict(self.state, self.spec)
            if end:
                self._end(end.result, end.reason, end.error, end.exit_code)
                return rounds.decide(self._now, self.state, self.spec)
        match verdict.step:
            case rounds.Step.FORM:
                assert verdict.round is not None
                self._iterations = {}
                self._record(RoundFormed(time=self._now, round=verdict.round))
            case rounds.Step.BREAK:
                self._break(Reason.GROW, verdict.reason)
            case rounds.Step.GIVE_UP:
                self._end(JobResult.NO_QUORUM, verdict.reason, exit_code=3)
            case rounds.Step.WAIT:
                pass
        return verdict

    def _next(self, decided: float | None) -> float | None:
        deadlines = [deadline for deadline, _, _ in self._silences()]
        if decided is not None:
            deadlines.append(decided)
        for node in self.state.nodes.values():
            leaves = node.left_at + self.spec.patience.leave_s
            if node.phase is NodePhase.RELEASED and leaves > self._now:
                deadlines.append(leaves)
        if deadlines and self.state.phase is not JobPhase.ENDED:
            deadlines.append(self._now + self.spec.patience.silence_s / 4)
        return min(deadlines, default=None)
