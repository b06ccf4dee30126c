"""What the brain is told, by agents, the platform and people: one function an event, from what came to records.

Messages may be late, repeated, or from nodes that have no place any more: those change nothing, or are refused.
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
    ScaleAsked,
    ShardStored,
    StacksDumped,
    StopAsked,
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
from everstep.runtime.job.state import JobPhase, begun_from, round_number
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Case, Refused, UnknownNode
from everstep.runtime.protocol.messages import Action, Heartbeat, Join

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")

P = NodePhase


def take(case: Case, event: object) -> None:
    """Record what follows directly from the event. Raises Refused."""
    _TAKE[type(event)](case, event)


def _opened(case: Case, event: Opened) -> None:
    ended = case.state.ended
    if ended and ended.result is not JobResult.SUCCEEDED:
        case.record(JobReopened(time=case.now))
    if case.state.phase is not JobPhase.ENDED:
        _survey(case, event.survey)


def _survey(case: Case, seen: Survey) -> None:
    """Take up what the store has and the journal does not tell of, and pass over what the store has no more."""
    state = case.state
    known = {checkpoint.manifest for checkpoint in state.checkpoints.values()}
    refused = [refusal for refusal in seen.refusals if refusal not in state.refused]
    found = tuple(
        one
        for one in seen.found
        if one.key not in known and not any(r.meets(held) for r in (*state.refused, *refused) for held in one.shards)
    )
    if found or seen.rounds > max(round_number(state), state.rounds_before):
        case.record(StoreSurveyed(time=case.now, found=found, rounds=seen.rounds))
    if refused:
        case.record(PassedOver(time=case.now, refusals=tuple(refused)))


def _restore_failed(case: Case, event: RestoreFailed) -> None:
    told, current = event.unrestored, round_number(case.state)
    case.known(told.node)
    case.heard(told.node)
    begun = begun_from(case.state)
    refusals = tuple(r for r in told.refusals if (r.round, r.iteration) == begun and r not in case.state.refused)
    if told.round != current or case.state.phase is JobPhase.ENDED or not refusals:
        return  # Another node has told it before.
    case.record(PassedOver(time=case.now, refusals=refusals, round=current))
    _survey(case, event.survey)
    if case.state.phase is JobPhase.RUNNING:
        case.break_round(Reason.DAMAGED, checkpoints.told(refusals))


def _joined(case: Case, event: Joined) -> None:
    join = event.join
    node = _admitted(case, join) if case.joined else case.state.nodes.get(join.node)
    if node is None or (node.phase in (P.LOST, P.RELEASED) and not case.joined):
        raise UnknownNode(f"{join.node} has no place in job {case.spec.job}" + (f": {node.phase}" if node else ""))
    if node.role != join.role:
        raise UnknownNode(f"{join.node} is a {node.role} node of job {case.spec.job}, not {join.role}")
    current = round_number(case.state)
    if join.after_round > current:
        raise UnknownNode(f"{join.node} comes from round {join.after_round}, job {case.spec.job} is at {current}")
    if _is_copy(join, node):
        return  # What it asks for stands in the state, or is past.
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
    case.heard(join.node)


def _is_copy(join: Join, node: NodeState) -> bool:
    """Was this join journaled, or one that the node sent after it? An agent sends the next only after an answer."""
    return (join.life, join.number) <= (node.life, node.join)


def _admitted(case: Case, join: Join) -> NodeState | None:
    """Where nodes come by themselves: the node of this name, made known if it is new, or back under its old name."""
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
        case.lose(join.node, Reason.NODE_LOST, "its agent was started anew")
    if node and join.life == node.life and node.action is Action.LEAVE:
        raise UnknownNode(f"{join.node} was told to leave: {node.action_reason}")
    index = join.index if join.index >= 0 else node.index if node else case.state.nodes.known(join.role)
    if (join.role, index) in case.state.given_up:
        raise UnknownNode(f"{join.role}-{index} was given up: {case.state.given_up[join.role, index].detail}")
    case.record(NodeAppeared(time=case.now, node=join.node, role=join.role, index=index, host=join.host))
    return case.state.nodes[join.node]


def _heartbeat(case: Case, event: HeartbeatSeen) -> None:
    beat = event.heartbeat
    node = case.known(beat.node)
    if case.liveness.is_late(beat) or beat.life != node.life:
        return  # Of an agent that has not joined yet, or of an earlier one, which `seats.directive` tells so.
    case.heard(beat.node)
    case.liveness.beat(case.state, beat)
    if _contradicts(beat, node):
        case.record(NodeStrayed(time=case.now, node=beat.node, round=beat.round))


def _contradicts(beat: Heartbeat, node: NodeState) -> bool:
    """Is the node in another round than its seat's, and was not told so since it carried out its last directive?"""
    seat = {P.RUNNING: node.round, P.FINISHED: node.round, P.WAITING: 0}.get(node.phase)
    if seat is None or beat.waits or not beat.round or beat.round == seat or beat.join < node.join:
        return False
    told = node.action is Action.REJOIN and node.action_round >= beat.round
    return not (told and beat.seen < node.directive)


def _worker_exited(case: Case, event: WorkerExited) -> None:
    told = event.exit
    node, current = case.known(told.node), round_number(case.state)
    case.heard(told.node)
    if told.round != current or node.round != current or case.state.phase is JobPhase.ENDED:
        return
    if node.faulted_round == told.round:
        return  # A node tells of one death a round.
    if node.phase not in (P.RUNNING, P.REJOINING, P.WAITING):
        return
    case.liveness.reached(told.node, told.iteration)
    reason = policy.reason_of(told.exit_code, case.spec.hardware_exit_codes, told.oom)
    fault = WorkerFaulted(
        time=case.now, node=told.node, round=told.round, rank=told.rank, local_rank=told.local_rank,
        exit_code=told.exit_code, iteration=told.iteration, reason=reason, error=told.error,
        died=max(case.now - told.ago_s, 0.0),
    )  # fmt: skip
    case.record(fault)
    if case.state.phase is JobPhase.RUNNING:
        case.break_round(reason, policy.told(fault), told.node)
    if reason is not Reason.USER_ERROR and not node.leaving:  # An error may be an echo: it is judged when all is known.
        case.judge(node, reason, told.exit_code, current)


def _node_finished(case: Case, event: NodeFinishedRound) -> None:
    told = event.finished
    node = case.known(told.node)
    case.heard(told.node)
    if node.phase is P.RUNNING and told.round == round_number(case.state):
        case.record(NodeFinished(time=case.now, node=told.node, round=told.round))


def _shard_stored(case: Case, event: ShardStored) -> None:
    node, held = event.persisted.node, event.persisted.holding
    case.known(node)
    case.heard(node)
    if not held.key or not 0 <= held.shard < held.shards or not 0 < held.round <= round_number(case.state):
        raise Refused(f"{node} persisted no shard of this job: {held.key!r} of round {held.round}")
    place = held.round, held.iteration
    known = case.state.checkpoints.get(place)
    if known is None and place <= case.state.forgotten:
        return
    if known is None or held.shard not in known.shards:
        case.record(ShardPersisted(time=case.now, holding=held))


def _manifest_written(case: Case, event: ManifestWritten) -> None:
    case.committing.discard((event.round, event.iteration))
    case.record(Committed(time=case.now, round=event.round, iteration=event.iteration, key=event.key))


def _deletion_due(case: Case, event: DeletionDue) -> None:
    begun = begun_from(case.state)
    gone = tuple(place for place in event.places if place in case.state.checkpoints and place != begun)
    if gone:
        case.record(Forgotten(time=case.now, places=gone))


def _leave_announced(case: Case, event: LeaveAnnounced) -> None:
    told = event.leaving
    node = case.known(told.node)
    case.heard(told.node)
    until = case.now + max(told.grace_s, 0.0)
    if told.life != node.life:
        return
    if node.phase not in LIVE or case.state.phase is JobPhase.ENDED or (node.leaving and until >= node.leaving_until):
        return
    case.record(
        NodeLeaving(time=case.now, node=told.node, reason=Reason.PREEMPTED, detail=told.reason[:1000], until=until)
    )


def _stacks_dumped(case: Case, event: StacksDumped) -> None:
    node = case.known(event.dumped.node)
    case.heard(node.name)
    told = event.dumped
    if case.state.hang and told.round == node.round == case.state.hang.round and told.directive == node.directive:
        case.liveness.dumped(node.name)


def _node_created(case: Case, event: NodeCreated) -> None:
    if event.node in case.state.nodes:
        case.heard(event.node)


def _node_gone(case: Case, event: NodeGone) -> None:
    node = case.state.nodes.get(event.node)
    if node is None:
        return
    if event.gave_way and node.phase in LIVE and not node.leaving and case.state.phase is not JobPhase.ENDED:
        detail = event.detail[:1000]
        case.record(NodeLeaving(time=case.now, node=event.node, reason=Reason.PREEMPTED, detail=detail, until=case.now))
    reason = Reason.START_FAILED if node.phase is P.REQUESTED else Reason.NODE_LOST
    if event.exit_code is not None:
        by_code = policy.reason_of(event.exit_code, case.spec.hardware_exit_codes)
        reason = by_code if by_code in (Reason.HARDWARE, Reason.OOM) else reason
    case.lose(event.node, reason, event.detail, event.exit_code)


def _scale(case: Case, event: ScaleAsked) -> None:
    asked = case.spec.roles.get(event.role)
    if asked is None:
        raise Refused(f"role: the job has no {event.role!r}, only {', '.join(case.spec.roles)}")
    if not asked.least <= event.nodes <= asked.most:
        bounds = f"{asked.least} and {asked.most}"
        raise Refused(f"nodes: {event.nodes} is not between {bounds}, the bounds of {event.role}")
    if case.state.phase is JobPhase.ENDED:
        raise Refused(f"the job has ended: {case.state.reason}")
    if event.nodes != replicas.size(case.state, case.spec, event.role):
        case.record(DesiredChanged(time=case.now, role=event.role, nodes=event.nodes))


def _stop(case: Case, event: StopAsked) -> None:
    case.end(End(JobResult.STOPPED, event.reason, exit_code=143))


def _tick(case: Case, _: Tick) -> None:
    """Nothing was told; time has passed."""


_TAKE: dict[type, Callable[[Case, Any], None]] = {
    Opened: _opened,
    Joined: _joined,
    HeartbeatSeen: _heartbeat,
    WorkerExited: _worker_exited,
    NodeFinishedRound: _node_finished,
    ShardStored: _shard_stored,
    RestoreFailed: _restore_failed,
    ManifestWritten: _manifest_written,
    DeletionDue: _deletion_due,
    LeaveAnnounced: _leave_announced,
    StacksDumped: _stacks_dumped,
    NodeCreated: _node_created,
    NodeGone: _node_gone,
    ScaleAsked: _scale,
    StopAsked: _stop,
    Tick: _tick,
}
