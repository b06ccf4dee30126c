"""Handles events from agents, the platform and people: one function per event, which records what it means.

A message may be late, repeated, or from a node that is no longer in the job: it then changes nothing or is refused.
"""

import re
from collections.abc import Callable
from typing import Any

from everstep.runtime.job import checkpoints, policy, replicas
from everstep.runtime.job.events import (
    DeletionDue,
    HeartbeatSeen,
    Joined,
    LeaveAnnounced,
    ManifestWritten,
    NodeCreated,
    NodeFinishedRound,
    NodeGone,
    Opened,
    RestoreFailed,
    ScaleRequested,
    ShardStored,
    StacksDumped,
    StopRequested,
    Survey,
    Tick,
    WorkerExited,
)
from everstep.runtime.job.nodes import LIVE, NodePhase, NodeState
from everstep.runtime.job.records import (
    Committed,
    DesiredChanged,
    Forgotten,
    JobReopened,
    JobResult,
    NodeAppeared,
    NodeFinished,
    NodeJoined,
    NodeLeaving,
    NodeStrayed,
    PassedOver,
    Reason,
    ShardPersisted,
    StoreSurveyed,
    WorkerFaulted,
)
from everstep.runtime.job.state import JobPhase, restore_point, round_number
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Refused, Transaction, UnknownNode
from everstep.runtime.protocol.messages import Action, Heartbeat, Join

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")

P = NodePhase


def handle_event(case: Transaction, event: object) -> None:
    """Record what follows directly from the event. Raises Refused."""
    _HANDLERS[type(event)](case, event)


def _on_opened(case: Transaction, event: Opened) -> None:
    ended = case.state.ended
    if ended and ended.result is not JobResult.SUCCEEDED:
        case.record(JobReopened(time=case.now))
    if case.state.phase is not JobPhase.ENDED:
        _record_survey(case, event.survey)


def _record_survey(case: Transaction, seen: Survey) -> None:
    """Record checkpoints that the store has but the journal does not know, and pass over damaged or missing ones."""
    state = case.state
    known = {checkpoint.manifest for checkpoint in state.checkpoints.values()}
    refused = [refusal for refusal in seen.refusals if refusal not in state.refused]
    found = tuple(
        one
        for one in seen.unjournaled
        if one.key not in known and not any(r.covers(held) for r in (*state.refused, *refused) for held in one.shards)
    )
    if found or seen.rounds > max(round_number(state), state.rounds_before):
        case.record(StoreSurveyed(time=case.now, found=found, rounds=seen.rounds))
    if refused:
        case.record(PassedOver(time=case.now, refusals=tuple(refused)))


def _on_restore_failed(case: Transaction, event: RestoreFailed) -> None:
    told, current = event.unrestored, round_number(case.state)
    case.require_node(told.node)
    case.mark_alive(told.node)
    begun = restore_point(case.state)
    refusals = tuple(r for r in told.refusals if (r.round, r.iteration) == begun and r not in case.state.refused)
    if told.round != current or case.state.phase is JobPhase.ENDED or not refusals:
        return  # Another node has reported it before.
    case.record(PassedOver(time=case.now, refusals=refusals, round=current))
    _record_survey(case, event.survey)
    if case.state.phase is JobPhase.RUNNING:
        case.break_round(Reason.DAMAGED, checkpoints.refusal_summary(refusals))


def _on_joined(case: Transaction, event: Joined) -> None:
    join = event.join
    node = _admit(case, join) if case.has_joined_placement else case.state.nodes.get(join.node)
    if node is None or (node.phase in (P.LOST, P.RELEASED) and not case.has_joined_placement):
        raise UnknownNode(f"{join.node} has no place in job {case.spec.job}" + (f": {node.phase}" if node else ""))
    if node.role != join.role:
        raise UnknownNode(f"{join.node} is a {node.role} node of job {case.spec.job}, not {join.role}")
    current = round_number(case.state)
    if join.after_round > current:
        raise UnknownNode(f"{join.node} comes from round {join.after_round}, job {case.spec.job} is at {current}")
    if _is_copy(join, node):
        return  # A duplicate: the join is in the state already, or outdated.
    asks_again = node.phase is P.RUNNING and join.life == node.life and join.after_round < current
    if node.phase in (P.RUNNING, P.FINISHED) and not asks_again:
        case.break_round(Reason.REJOINED, f"{join.node} left round {current} and joined again", join.node)
    case.record(
        NodeJoined(
            time=case.now, node=join.node, host=join.host, slots=join.slots, address=join.address, ip=join.ip,
            master_port=join.master_port, holdings=join.holdings, after_round=join.after_round, checked=join.checked,
            life=join.life, number=join.number,
        )
    )  # fmt: skip
    case.mark_alive(join.node)


def _is_copy(join: Join, node: NodeState) -> bool:
    """Whether this join or a later one of the node is journaled. An agent sends its next join only after an answer."""
    return (join.life, join.number) <= (node.life, node.join)


def _admit(case: Transaction, join: Join) -> NodeState | None:
    """With placement `joined`: the node of this name, admitted if it is new or has come back. Raises UnknownNode,
    Refused."""
    node = case.state.nodes.get(join.node)
    if join.role not in case.spec.roles:
        raise UnknownNode(f"role: job {case.spec.job} has no {join.role!r}, only {', '.join(case.spec.roles)}")
    if node is None and not _NODE.fullmatch(join.node):
        raise Refused(f"node: {join.node[:120]!r} is no name for a node; use letters, digits and . _ -")
    if case.state.phase is JobPhase.ENDED:
        raise UnknownNode(f"job {case.spec.job} has ended: {case.state.reason}")
    if join.host in case.state.avoided or join.host in case.spec.avoid_hosts:
        raise UnknownNode(f"{join.host} gets no more nodes of job {case.spec.job}: it was found faulty")
    if node and _is_copy(join, node):
        return node
    if node and node.phase in LIVE:
        if join.life == node.life:
            return node
        case.lose_node(join.node, Reason.NODE_LOST, "its agent was started anew")
    if node and join.life == node.life and node.action is Action.LEAVE:
        raise UnknownNode(f"{join.node} was told to leave: {node.action_reason}")
    index = join.index if join.index >= 0 else node.index if node else case.state.nodes.count_ever(join.role)
    if (join.role, index) in case.state.given_up:
        raise UnknownNode(f"{join.role}-{index} was given up: {case.state.given_up[join.role, index].detail}")
    case.record(NodeAppeared(time=case.now, node=join.node, role=join.role, index=index, host=join.host))
    return case.state.nodes[join.node]


def _on_heartbeat(case: Transaction, event: HeartbeatSeen) -> None:
    beat = event.heartbeat
    node = case.require_node(beat.node)
    if case.liveness.is_late(beat) or beat.life != node.life:
        return  # From an agent that has not joined yet, or from an earlier one, which its directive tells to rejoin.
    case.mark_alive(beat.node)
    case.liveness.record_heartbeat(case.state, beat)
    if _contradicts(beat, node):
        case.record(NodeStrayed(time=case.now, node=beat.node, round=beat.round))


def _contradicts(beat: Heartbeat, node: NodeState) -> bool:
    """Whether the node is in another round than its seat's, and no directive on the way tells it to rejoin."""
    seat = {P.RUNNING: node.round, P.FINISHED: node.round, P.WAITING: 0}.get(node.phase)
    if seat is None or beat.waits or not beat.round or beat.round == seat or beat.join < node.join:
        return False
    told = node.action is Action.REJOIN and node.action_round >= beat.round
    return not (told and beat.seen < node.directive)


def _on_worker_exited(case: Transaction, event: WorkerExited) -> None:
    told = event.exit
    node, current = case.require_node(told.node), round_number(case.state)
    case.mark_alive(told.node)
    if told.round != current or node.round != current or case.state.phase is JobPhase.ENDED:
        return
    if node.faulted_round == told.round:
        return  # A node reports one death per round.
    if node.phase not in (P.RUNNING, P.REJOINING, P.WAITING):
        return
    case.liveness.record_iteration(told.node, told.iteration)
    reason = policy.reason_of(told.exit_code, case.spec.hardware_exit_codes, told.oom)
    fault = WorkerFaulted(
        time=case.now, node=told.node, round=told.round, rank=told.rank, local_rank=told.local_rank,
        exit_code=told.exit_code, iteration=told.iteration, reason=reason, error=told.error,
        died=max(case.now - told.ago_s, 0.0),
    )  # fmt: skip
    case.record(fault)
    if case.state.phase is JobPhase.RUNNING:
        case.break_round(reason, policy.fault_summary(fault), told.node)
    if reason is not Reason.USER_ERROR and not node.is_leaving:  # An error may be an echo: judged later.
        case.judge_fault(node, reason, told.exit_code, current)


def _on_node_finished(case: Transaction, event: NodeFinishedRound) -> None:
    told = event.finished
    node = case.require_node(told.node)
    case.mark_alive(told.node)
    if node.phase is P.RUNNING and told.round == round_number(case.state):
        case.record(NodeFinished(time=case.now, node=told.node, round=told.round))


def _on_shard_stored(case: Transaction, event: ShardStored) -> None:
    node, held = event.persisted.node, event.persisted.holding
    case.require_node(node)
    case.mark_alive(node)
    if not held.key or not 0 <= held.shard < held.shards or not 0 < held.round <= round_number(case.state):
        raise Refused(f"{node} persisted no shard of this job: {held.key!r} of round {held.round}")
    place = held.round, held.iteration
    known = case.state.checkpoints.get(place)
    if known is None and place <= case.state.forgotten:
        return
    if known is None or held.shard not in known.shards:
        case.record(ShardPersisted(time=case.now, holding=held))


def _on_manifest_written(case: Transaction, event: ManifestWritten) -> None:
    case.committing.discard((event.round, event.iteration))
    case.record(Committed(time=case.now, round=event.round, iteration=event.iteration, key=event.key))


def _on_deletion_due(case: Transaction, event: DeletionDue) -> None:
    begun = restore_point(case.state)
    gone = tuple(place for place in event.checkpoints if place in case.state.checkpoints and place != begun)
    if gone:
        case.record(Forgotten(time=case.now, places=gone))


def _on_leave_announced(case: Transaction, event: LeaveAnnounced) -> None:
    told = event.leaving
    node = case.require_node(told.node)
    case.mark_alive(told.node)
    until = case.now + max(told.grace_s, 0.0)
    if told.life != node.life:
        return
    if (
        node.phase not in LIVE
        or case.state.phase is JobPhase.ENDED
        or (node.is_leaving and until >= node.leaving_until)
    ):
        return
    case.record(
        NodeLeaving(time=case.now, node=told.node, reason=Reason.PREEMPTED, detail=told.reason[:1000], until=until)
    )


def _on_stacks_dumped(case: Transaction, event: StacksDumped) -> None:
    node = case.require_node(event.dumped.node)
    case.mark_alive(node.name)
    told = event.dumped
    if case.state.hang and told.round == node.round == case.state.hang.round and told.directive == node.directive:
        case.liveness.record_dump(node.name)


def _on_node_created(case: Transaction, event: NodeCreated) -> None:
    if event.node in case.state.nodes:
        case.mark_alive(event.node)


def _on_node_gone(case: Transaction, event: NodeGone) -> None:
    node = case.state.nodes.get(event.node)
    if node is None:
        return
    if event.gave_way and node.phase in LIVE and not node.is_leaving and case.state.phase is not JobPhase.ENDED:
        detail = event.detail[:1000]
        case.record(NodeLeaving(time=case.now, node=event.node, reason=Reason.PREEMPTED, detail=detail, until=case.now))
    reason = Reason.START_FAILED if node.phase is P.REQUESTED else Reason.NODE_LOST
    if event.exit_code is not None:
        by_code = policy.reason_of(event.exit_code, case.spec.hardware_exit_codes)
        reason = by_code if by_code in (Reason.HARDWARE, Reason.OOM) else reason
    case.lose_node(event.node, reason, event.detail, event.exit_code)


def _on_scale_requested(case: Transaction, event: ScaleRequested) -> None:
    asked = case.spec.roles.get(event.role)
    if asked is None:
        raise Refused(f"role: the job has no {event.role!r}, only {', '.join(case.spec.roles)}")
    if not asked.least <= event.nodes <= asked.most:
        bounds = f"{asked.least} and {asked.most}"
        raise Refused(f"nodes: {event.nodes} is not between {bounds}, the bounds of {event.role}")
    if case.state.phase is JobPhase.ENDED:
        raise Refused(f"the job has ended: {case.state.reason}")
    if event.nodes != replicas.desired_size(case.state, case.spec, event.role):
        case.record(DesiredChanged(time=case.now, role=event.role, nodes=event.nodes))


def _on_stop_requested(case: Transaction, event: StopRequested) -> None:
    case.end_job(End(JobResult.STOPPED, event.reason, exit_code=143))


def _on_tick(case: Transaction, _: Tick) -> None:
    """Time has passed; `settle` looks at the deadlines."""


_HANDLERS: dict[type, Callable[[Transaction, Any], None]] = {
    Opened: _on_opened,
    Joined: _on_joined,
    HeartbeatSeen: _on_heartbeat,
    WorkerExited: _on_worker_exited,
    NodeFinishedRound: _on_node_finished,
    ShardStored: _on_shard_stored,
    RestoreFailed: _on_restore_failed,
    ManifestWritten: _on_manifest_written,
    DeletionDue: _on_deletion_due,
    LeaveAnnounced: _on_leave_announced,
    StacksDumped: _on_stacks_dumped,
    NodeCreated: _on_node_created,
    NodeGone: _on_node_gone,
    ScaleRequested: _on_scale_requested,
    StopRequested: _on_stop_requested,
    Tick: _on_tick,
}
