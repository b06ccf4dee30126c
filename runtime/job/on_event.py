"""Handles events from agents, the platform and people: one function per event, which records what it means.

Events about checkpoints and shards of data are in `on_stored`, evidence about a state in `on_evidence`.
A message may be late, repeated, or from a node that is no longer in the job: it then changes nothing or is refused.
"""

import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from everstep.runtime.job import fault_policy, replicas
from everstep.runtime.job.events import (
    EvidenceGiven,
    HeartbeatSeen,
    Joined,
    LeaveAnnounced,
    NodeChecked,
    NodeCreated,
    NodeFinishedRound,
    NodeGone,
    Opened,
    RankDisconnected,
    ScaleRequested,
    StacksDumped,
    StopRequested,
    Tick,
    WorkerExited,
)
from everstep.runtime.job.nodes import LIVE, NodePhase, NodeState
from everstep.runtime.job.on_evidence import handle_evidence
from everstep.runtime.job.on_stored import STORED_HANDLERS, record_survey
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import (
    DesiredChanged,
    JobReopened,
    NodeAppeared,
    NodeFinished,
    NodeJoined,
    NodeLeaving,
    NodeStrayed,
    NodeTested,
    WorkerFaulted,
)
from everstep.runtime.job.spec import Placement
from everstep.runtime.job.state import round_number
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Refused, Transaction, UnknownNode
from everstep.runtime.protocol.messages import Action, Heartbeat, Join
from everstep.runtime.watch.hang_culprit import Standing

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")

P = NodePhase


def handle_event(tx: Transaction, event: object) -> None:
    """Record what follows directly from the event. Raises Refused."""
    _HANDLERS[type(event)](tx, event)


def _on_opened(tx: Transaction, event: Opened) -> None:
    termination = tx.state.ended
    if termination and termination.result is not JobResult.SUCCEEDED:
        tx.record(JobReopened(time=tx.now))
    if tx.state.phase is not JobPhase.ENDED:
        record_survey(tx, event.survey)


def _on_joined(tx: Transaction, event: Joined) -> None:
    join = event.join
    node = _admit(tx, join) if tx.has_joined_placement else tx.state.nodes.get(join.node)
    if node is None or (node.phase in (P.LOST, P.RELEASED) and not tx.has_joined_placement):
        raise UnknownNode(f"{join.node} does not belong to job {tx.spec.job}" + (f": {node.phase}" if node else ""))
    if node.role != join.role:
        raise UnknownNode(f"{join.node} is a {node.role} node of job {tx.spec.job}, not {join.role}")
    current = round_number(tx.state)
    if join.after_round > current:
        raise UnknownNode(f"{join.node} comes from round {join.after_round}, job {tx.spec.job} is at {current}")
    if _is_copy(join, node) or node.phase is P.LOST:
        return  # A duplicate (the join is in the state already, or outdated), or from a node that is given up just now.
    asks_again = node.phase is P.RUNNING and join.life == node.life and join.after_round < current
    if node.phase in (P.RUNNING, P.FINISHED) and not asks_again:
        tx.break_round(Reason.REJOINED, f"{join.node} left round {current} and joined again", join.node)
    tx.record(
        NodeJoined(
            time=tx.now, node=join.node, host=join.host, slots=join.slots, address=join.address, ip=join.ip,
            master_port=join.master_port, holdings=join.holdings, after_round=join.after_round, checked=join.checked,
            prepared=join.prepared, zone=join.zone, life=join.life, number=join.number,
        )
    )  # fmt: skip
    tx.mark_alive(join.node)


def _is_copy(join: Join, node: NodeState) -> bool:
    """Whether this join or a later one of the node is journaled. An agent sends its next join only after an answer."""
    return (join.life, join.number) <= (node.life, node.join)


def _admit(tx: Transaction, join: Join) -> NodeState | None:
    """With placement `joined`: the node of this name, admitted if it is new or has come back. Raises UnknownNode,
    Refused."""
    node = tx.state.nodes.get(join.node)
    if join.role not in tx.spec.roles:
        raise UnknownNode(f"role: job {tx.spec.job} has no {join.role!r}, only {', '.join(tx.spec.roles)}")
    if node is None and not _NODE.fullmatch(join.node):
        raise Refused(f"node: {join.node[:120]!r} is not a valid node name; use letters, digits and . _ -")
    if tx.state.phase is JobPhase.ENDED:
        raise UnknownNode(f"job {tx.spec.job} has ended: {tx.state.reason}")
    if join.host in tx.state.avoided or join.host in tx.spec.avoid_hosts:
        raise UnknownNode(f"{join.host} gets no more nodes of job {tx.spec.job}: it was found faulty")
    if node and _is_copy(join, node):
        return node
    if node and node.phase in LIVE:
        if join.life == node.life or node.phase is P.REQUESTED:
            return node  # One that a platform was asked for, before this master stood in, has had no agent yet.
        tx.lose_node(join.node, Reason.NODE_LOST, "its agent was restarted")
    if node and join.life == node.life and node.action is Action.LEAVE:
        raise UnknownNode(f"{join.node} was told to leave: {node.action_reason}")
    index = join.index if join.index >= 0 else node.index if node else tx.state.nodes.count_ever(join.role)
    if (join.role, index) in tx.state.given_up:
        if node and node.phase in LIVE:  # Lost just now, which a refusal would undo. The next join is refused.
            return tx.state.nodes[join.node]
        raise UnknownNode(f"{join.role}-{index} was given up: {tx.state.given_up[join.role, index].detail}")
    tx.record(NodeAppeared(time=tx.now, node=join.node, role=join.role, index=index, host=join.host))
    return tx.state.nodes[join.node]


def _on_heartbeat(tx: Transaction, event: HeartbeatSeen) -> None:
    beat = event.heartbeat
    node = tx.require_node(beat.node)
    if tx.liveness.is_late(beat) or beat.life != node.life:
        return  # From an agent that has not joined yet, or from an earlier one, which its directive tells to rejoin.
    tx.mark_alive(beat.node)
    tx.liveness.record_heartbeat(tx.state, beat)
    tx.liveness.record_silent(tx.state, beat, tx.now)
    if _contradicts(beat, node):
        tx.record(NodeStrayed(time=tx.now, node=beat.node, round=beat.round))


def _contradicts(beat: Heartbeat, node: NodeState) -> bool:
    """Whether the node is in another round than its seat's, and no directive on the way tells it to rejoin."""
    seat = {P.RUNNING: node.round, P.FINISHED: node.round, P.WAITING: 0, P.CHECKING: 0}.get(node.phase)
    if seat is None or beat.waits or not beat.round or beat.round == seat or beat.join < node.join:
        return False
    is_told = node.action is Action.REJOIN and node.action_round >= beat.round
    return not (is_told and beat.seen < node.directive)


def _on_worker_exited(tx: Transaction, event: WorkerExited) -> None:
    report = event.exit
    node, current = tx.require_node(report.node), round_number(tx.state)
    tx.mark_alive(report.node)
    if report.round != current or node.round != current or tx.state.phase is JobPhase.ENDED:
        return
    if node.faulted_round == report.round:
        return  # A node reports one death per round.
    if node.phase not in (P.RUNNING, P.REJOINING, P.WAITING, P.CHECKING, P.SUSPECTED):
        return
    tx.liveness.record_iteration(report.node, report.iteration)
    reason = fault_policy.reason_of(report.exit_code, tx.spec.hardware_exit_codes, report.oom)
    fault = WorkerFaulted(
        time=tx.now, node=report.node, round=report.round, rank=report.rank, local_rank=report.local_rank,
        exit_code=report.exit_code, iteration=report.iteration, reason=reason, error=report.error,
        died=max(tx.now - report.ago_s, 0.0), kernel=report.kernel, failed=report.failed,
    )  # fmt: skip
    tx.record(fault)
    if tx.state.phase is JobPhase.RUNNING:
        tx.break_round(reason, fault_policy.fault_summary(fault), report.node)
    if reason is not Reason.USER_ERROR and not node.is_leaving:  # An error may be an echo: judged later.
        tx.judge_fault(node, reason, report.exit_code, current)


def _on_rank_disconnected(tx: Transaction, event: RankDisconnected) -> None:
    """End the round without a fault: who is to blame, if anybody, is told by another message, perhaps later."""
    report = event.disconnected
    node = tx.require_node(report.node)
    tx.mark_alive(report.node)
    if report.round != round_number(tx.state) or node.phase is not P.RUNNING or tx.state.phase is not JobPhase.RUNNING:
        return
    tx.liveness.record_iteration(report.node, report.iteration)
    who = f"rank {report.rank} on {report.node}"
    finished = sum(tx.state.finished.values())
    hint = f" (nodes that had finished: {finished})" if finished else ""
    tx.break_round(Reason.DISCONNECTED, f"{who} lost its connection to another rank{hint}: {report.error[:1000]}")


def _on_node_finished(tx: Transaction, event: NodeFinishedRound) -> None:
    report = event.finished
    node = tx.require_node(report.node)
    tx.mark_alive(report.node)
    if node.phase is P.RUNNING and report.round == round_number(tx.state):
        tx.record(NodeFinished(time=tx.now, node=report.node, round=report.round))


def _on_leave_announced(tx: Transaction, event: LeaveAnnounced) -> None:
    notice = event.leaving
    node = tx.require_node(notice.node)
    tx.mark_alive(notice.node)
    until = tx.now + max(notice.grace_s, 0.0)
    if notice.life != node.life:
        return
    if node.phase not in LIVE or tx.state.phase is JobPhase.ENDED or (node.is_leaving and until >= node.leaving_until):
        return
    tx.record(
        NodeLeaving(time=tx.now, node=notice.node, reason=Reason.PREEMPTED, detail=notice.reason[:1000], until=until)
    )


def _on_stacks_dumped(tx: Transaction, event: StacksDumped) -> None:
    node = tx.require_node(event.dumped.node)
    tx.mark_alive(node.name)
    report = event.dumped
    if tx.state.hang and report.round == node.round == tx.state.hang.round and report.directive == node.directive:
        tx.liveness.record_dump(node.name, _own_standings(tx, node, report.standings))


def _own_standings(tx: Transaction, node: NodeState, standings: tuple[Standing, ...]) -> tuple[Standing, ...]:
    """Those of the node's own ranks. What a node says of others, and of the size of the world, does not count."""
    own, world_size = range(node.first_rank, node.first_rank + node.slots), sum(tx.state.workers.values())
    by_rank = {standing.rank: standing for standing in standings if standing.rank in own}
    return tuple(replace(standing, world_size=world_size) for standing in by_rank.values())


def _on_node_checked(tx: Transaction, event: NodeChecked) -> None:
    report = event.tested
    node = tx.require_node(report.node)
    tx.mark_alive(report.node)
    if node.phase is not P.CHECKING or report.round != node.action_round:
        return
    problem = report.problem[:1000]
    tx.record(NodeTested(time=tx.now, node=report.node, round=report.round, seconds=report.seconds, problem=problem))
    if problem and not node.is_leaving:
        where = f"{node.host}: {problem}" if node.host else problem
        tx.judge_fault(node, Reason.HARDWARE, None, report.round, where)


def _on_node_created(tx: Transaction, event: NodeCreated) -> None:
    if event.node in tx.state.nodes:
        tx.mark_alive(event.node)


def _on_node_gone(tx: Transaction, event: NodeGone) -> None:
    node = tx.state.nodes.get(event.node)
    if node is None:
        return
    if event.gave_way and node.phase in LIVE and not node.is_leaving and tx.state.phase is not JobPhase.ENDED:
        detail = event.detail[:1000]
        tx.record(NodeLeaving(time=tx.now, node=event.node, reason=Reason.PREEMPTED, detail=detail, until=tx.now))
    reason = Reason.START_FAILED if node.phase is P.REQUESTED else Reason.NODE_LOST
    if event.exit_code is not None:
        by_code = fault_policy.reason_of(event.exit_code, tx.spec.hardware_exit_codes)
        reason = by_code if by_code in (Reason.HARDWARE, Reason.OOM) else reason
    tx.lose_node(event.node, reason, event.detail, event.exit_code)


def _on_scale_requested(tx: Transaction, event: ScaleRequested) -> None:
    role = tx.spec.roles.get(event.role)
    if role is None:
        raise Refused(f"role: the job has no {event.role!r}, only {', '.join(tx.spec.roles)}")
    if not role.least <= event.nodes <= role.most:
        bounds = f"{role.least} and {role.most}"
        raise Refused(f"nodes: {event.nodes} is not between {bounds}, the bounds of {event.role}")
    if tx.state.phase is JobPhase.ENDED:
        raise Refused(f"the job has ended: {tx.state.reason}")
    if event.timeout_s and tx.spec.placement is Placement.JOINED:
        raise Refused("timeout_s: nodes of this job come by themselves; none is given up")
    if _is_new(tx, event):
        changed = DesiredChanged(
            time=tx.now, role=event.role, nodes=event.nodes, timeout_s=event.timeout_s, stamp=event.stamp or 0
        )
        tx.record(changed)


def _is_new(tx: Transaction, event: ScaleRequested) -> bool:
    """Whether it asks for something else than is wanted; of one that stands, whether it is another than the newest."""
    asked, wanted = tx.state.asked.get(event.role), replicas.desired_size(tx.state, tx.spec, event.role)
    if event.stamp is None or asked is None:
        return (event.nodes, event.timeout_s, event.stamp or 0) != (wanted, asked.timeout_s if asked else 0.0, 0)
    return (event.nodes, event.timeout_s, event.stamp) != (asked.nodes, asked.timeout_s, asked.stamp)


def _on_stop_requested(tx: Transaction, event: StopRequested) -> None:
    tx.end_job(End(JobResult.STOPPED, event.reason, exit_code=143))


def _on_tick(tx: Transaction, _: Tick) -> None:
    """Time has passed; `settle` looks at the deadlines."""


_HANDLERS: dict[type, Callable[[Transaction, Any], None]] = {
    Opened: _on_opened,
    Joined: _on_joined,
    HeartbeatSeen: _on_heartbeat,
    WorkerExited: _on_worker_exited,
    RankDisconnected: _on_rank_disconnected,
    NodeFinishedRound: _on_node_finished,
    EvidenceGiven: handle_evidence,
    **STORED_HANDLERS,
    LeaveAnnounced: _on_leave_announced,
    StacksDumped: _on_stacks_dumped,
    NodeChecked: _on_node_checked,
    NodeCreated: _on_node_created,
    NodeGone: _on_node_gone,
    ScaleRequested: _on_scale_requested,
    StopRequested: _on_stop_requested,
    Tick: _on_tick,
}
