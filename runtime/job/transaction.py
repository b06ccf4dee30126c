"""The brain's working context: the state so far, the time, and the decisions about the current event.

Every decision becomes a record here and nowhere else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from everstep.runtime.job import fault_policy
from everstep.runtime.job.fold import apply
from everstep.runtime.job.liveness import Liveness
from everstep.runtime.job.nodes import JOINED, LIVE, NodePhase, NodeState
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Decision, JobResult, Reason
from everstep.runtime.job.records import FaultJudged, JobEnded, NodeLeaving, NodeLost, NodeReleased, Record, RoundBroken
from everstep.runtime.job.spec import JobSpec, Placement, RestartScope
from everstep.runtime.job.state import RELAUNCHES, State, round_number
from everstep.runtime.job.termination import End
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Evidence


@dataclass(frozen=True)
class WriteRecord:
    """Journal this record; act on its effects only once it is durable."""

    record: Record


@dataclass(frozen=True)
class WriteManifest:
    """All shards of (round, iteration) are in the store: write its manifest, then feed ManifestWritten."""

    round: int
    iteration: int
    world_size: int
    shards: tuple[Holding, ...]
    is_certified: bool = False


class Refused(ValueError):  # noqa: N818 (a name that reads well in `except`)
    """The request is refused; the text says why."""


class UnknownNode(Refused):
    """The node is not, or no longer, part of this job: it must end."""


class Transaction:
    """A job's state and time, and the decisions about one event."""

    def __init__(self, spec: JobSpec, state: State, now: float) -> None:
        self.spec = spec
        self.state = state
        self.now = max(now, state.time)
        self.liveness = Liveness(spec, state, self.now)
        self.committing: set[tuple[int, int]] = set()
        """Checkpoints whose manifest is being written."""
        self.evidence: dict[tuple[int, int], dict[tuple[str, int], Evidence]] = {}
        """Of states that are not compared yet, by (round, iteration), then by node and shard."""
        self.decisions: list[WriteRecord | WriteManifest] = []

    @property
    def has_joined_placement(self) -> bool:
        """Whether nodes come by themselves (placement `joined`)."""
        return self.spec.placement is Placement.JOINED

    def record(self, record: Record) -> None:
        """Apply the record to the state and add it to the decisions."""
        self.state = apply(self.state, record)
        self.decisions.append(WriteRecord(record))

    def require_node(self, name: str) -> NodeState:
        """The node of that name. Raises UnknownNode."""
        node = self.state.nodes.get(name)
        if node is None:
            raise UnknownNode(f"{name} is not a node of job {self.spec.job}")
        return node

    def mark_alive(self, name: str) -> None:
        """Restart the node's timeout."""
        self.liveness.mark_alive(self.state, name, self.now)

    def break_round(self, reason: Reason, detail: str, node: str = "") -> None:
        """End the running round; its members are told to join again."""
        number = round_number(self.state)
        # A master that takes over after all nodes have died has heard none of them: the store tells how far they came.
        stored = (iteration for round_, iteration in self.state.checkpoints if round_ == number)
        iteration = max([self.liveness.newest_iteration(), *stored])
        self.record(
            RoundBroken(time=self.now, round=number, reason=reason, detail=detail, node=node, iteration=iteration)
        )

    def end_job(self, end: End) -> None:
        """End the job, unless it has ended before."""
        if self.state.phase is not JobPhase.ENDED:
            iteration = max(self.state.iteration, self.liveness.newest_iteration())
            self.record(
                JobEnded(
                    time=self.now, result=end.result, reason=end.reason, error=end.error, iteration=iteration,
                    exit_code=end.exit_code,
                )
            )  # fmt: skip

    def lose_node(self, name: str, reason: Reason, detail: str = "", exit_code: int | None = None) -> None:
        """Record that the node is gone, break its round, and judge the fault unless the node was to leave anyway."""
        node = self.state.nodes.get(name)
        if node is None or node.phase is NodePhase.LOST:
            return
        stays_away = not self.has_joined_placement or node.phase is NodePhase.RELEASED
        self.record(
            NodeLost(
                time=self.now, node=name, reason=reason, detail=detail, exit_code=exit_code, may_return=not stays_away
            )
        )
        if self.state.phase is JobPhase.ENDED:
            return
        current = round_number(self.state)
        was_awaited = node.phase in (NodePhase.REJOINING, NodePhase.SUSPECTED) and node.round == current
        number = current if was_awaited and self.state.broken is Reason.DISCONNECTED else 0
        if node.phase is NodePhase.RUNNING and self.state.phase is JobPhase.RUNNING:
            number = current
            why = node.leaving_because or reason
            self.break_round(why, f"{name}: {why.value}" + (f" ({detail})" if detail else ""), name)
        if node.phase in LIVE and node.phase is not NodePhase.FINISHED and not node.is_leaving:
            self.judge_fault(node, reason, exit_code, number)

    def judge_fault(
        self, node: NodeState, reason: Reason, exit_code: int | None, number: int, evidence: str = ""
    ) -> None:
        """Decide about a fault of the node that ended round `number` (0: none), and record what follows."""
        fate = fault_policy.judgement(self.state, self.spec, node, reason, exit_code)
        self.carry_out(node, reason, number, replace(fate, detail=f"{fate.detail}; {evidence}") if evidence else fate)

    def carry_out(self, node: NodeState, reason: Reason, number: int, fate: fault_policy.Judgement) -> None:
        """Record a decision about a fault of the node, and what follows."""
        self.record(
            FaultJudged(
                time=self.now, node=node.name, reason=reason, decision=fate.decision, detail=fate.detail, round=number,
                avoid=fate.avoid,
            )
        )  # fmt: skip
        if fate.decision is Decision.FAIL:
            self.end_job(End(JobResult.FAILED, f"{node.name}: {reason.value}; {fate.detail}", exit_code=1))
            return
        leaves = fate.decision in RELAUNCHES or fate.decision is Decision.GIVE_UP
        if leaves and self.state.nodes[node.name].phase in LIVE:
            self.record(NodeReleased(time=self.now, node=node.name, reason=reason))
        if fate.decision in RELAUNCHES and fate.scope is not RestartScope.POD:
            roles = self.spec.roles if fate.scope is RestartScope.ALL else (node.role,)
            self._replace_all(roles, node.name)

    def _replace_all(self, roles: Iterable[str], faulty: str) -> None:
        """Replace the other nodes of these roles. Their memory stays readable for `leave_s`."""
        until = self.now + self.spec.patience.leave_s
        others = [node.name for role in roles for node in self.state.nodes.select(role, JOINED) if node.name != faulty]
        if others and self.state.phase is JobPhase.RUNNING:
            self.break_round(Reason.RESTARTED, f"{faulty} is replaced, and {len(others)} other nodes with it", faulty)
        for name in others:
            self.record(
                NodeLeaving(time=self.now, node=name, reason=Reason.RESTARTED, detail=f"with {faulty}", until=until)
            )
