"""Which node the others wait for, from the paces of all ranks, and whether it is replaced. Pure.

A node that is slow in `SEEN_WINDOWS` windows in a row is reported, one that is in `REPLACED_WINDOWS` may be replaced.
Slow connections have two ends, so another node's window goes on with the first one's. A window counts once every node
of the role has sent its own, so a node that is silent delays the verdict, no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.runtime.job import fault_policy, rounds
from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.spec import JobSpec, StragglerPolicy
from everstep.runtime.job.state import State
from everstep.runtime.watch.slow_ranks import Pace, SlowPart, SlowVerdict, judge_paces

SEEN_WINDOWS = 3
REPLACED_WINDOWS = 6


@dataclass(frozen=True)
class SlowNode:
    """The node with the slowest rank."""

    node: str
    verdict: SlowVerdict
    windows: int
    """How many windows in a row, up to now, reported this node, or slow connections."""
    own_windows: int
    """In how many of them it was the slowest."""
    others: bool
    """Ranks of other nodes are slow, too."""


@dataclass
class SlowNodes:
    """The windows of one round's nodes."""

    _paces: dict[str, dict[str, tuple[Pace, ...]]] = field(default_factory=dict)
    """By role, then by node: the newest window since the last verdict."""
    _slow: dict[str, SlowNode] = field(default_factory=dict)
    """By role."""

    def clear(self) -> None:
        """Begin another round, or start again after a gap."""
        self._paces.clear()
        self._slow.clear()

    def record(self, state: State, node: NodeState, paces: tuple[Pace, ...]) -> None:
        """Take in a window of a member of the running round."""
        paces_of_role = self._paces.setdefault(node.role, {})
        paces_of_role[node.name] = paces
        training = sum(state.nodes.count(node.role, (NodePhase.RUNNING,), leaving) for leaving in (False, True))
        if len(paces_of_role) < training:
            return
        running = {name: some for name, some in paces_of_role.items() if state.nodes[name].phase is NodePhase.RUNNING}
        if len(running) >= training:
            paces_of_role.clear()
            self._judge(node.role, running)

    def _judge(self, role: str, paces: Mapping[str, tuple[Pace, ...]]) -> None:
        verdict = judge_paces([pace for some in paces.values() for pace in some])
        before = self._slow.pop(role, None)
        if verdict is None:
            return
        nodes = {pace.rank: name for name, some in paces.items() for pace in some}
        name = nodes[verdict.ranks[0]]
        same = before is not None and before.node == name
        again = same or (before is not None and before.verdict.part is verdict.part is SlowPart.NETWORK)
        others = any(nodes[rank] != name for rank in verdict.ranks)
        windows = before.windows + 1 if before and again else 1
        own_windows = before.own_windows + 1 if before and same else 1
        self._slow[role] = SlowNode(name, verdict, windows, own_windows, others)

    @property
    def stragglers(self) -> list[SlowNode]:
        """The nodes that are slow for long enough to say so."""
        return [slow_node for slow_node in self._slow.values() if slow_node.windows >= SEEN_WINDOWS]


def replacement(state: State, spec: JobSpec, slow: SlowNode) -> fault_policy.Judgement | None:
    """The judgement by which that node is replaced now; None: it stays.

    Invariant: a replica's slow node is replaced at most once in a job's life, and only while enough others remain.
    """
    node = state.nodes[slow.node]
    if spec.stragglers is not StragglerPolicy.REPLACE or slow.own_windows < REPLACED_WINDOWS or slow.others:
        return None
    if state.phase is not JobPhase.RUNNING or state.finished or state.hang:
        return None
    if node.phase is not NodePhase.RUNNING or node.is_leaving or node.replica in state.slow_replaced:
        return None
    if not rounds.can_do_without(state, spec, {node.name}):
        return None
    fate = fault_policy.judgement(state, spec, node, Reason.STRAGGLER)
    return fate if fate.decision is Decision.EXCLUDE else None
