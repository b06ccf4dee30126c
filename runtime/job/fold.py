"""The state of a job after its records: one function for each kind. `phases` has the job's transition table, `nodes`
that of its nodes; an unlisted pair raises. `fold_rounds` does the same for rounds, `fold_stored` for checkpoints and
shards of data.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from msgspec.structs import replace

from everstep.runtime.job import conditions as conditions_
from everstep.runtime.job import data_queues
from everstep.runtime.job.checkpoints import Doubt
from everstep.runtime.job.error_kinds import is_echo
from everstep.runtime.job.fold_rounds import ROUND_HANDLERS
from everstep.runtime.job.fold_stored import STORED_HANDLERS
from everstep.runtime.job.nodes import LIVE, NodePhase, NodeState, UnlistedTransition, node_after
from everstep.runtime.job.phases import JOB_TRANSITIONS
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.records import (
    DesiredChanged,
    FaultJudged,
    JobEnded,
    JobReopened,
    MasterAway,
    MasterClaimed,
    NodeAppeared,
    NodeFinished,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    NodeRequested,
    NodeStrayed,
    NodeSuspected,
    Record,
    WorkerFaulted,
)
from everstep.runtime.job.state import RELAUNCHES, State, fastest_start, require_node, round_number, with_nodes
from everstep.runtime.protocol.holdings import Flaw
from everstep.runtime.protocol.messages import Action

P = NodePhase


def apply(state: State, record: Record) -> State:
    """The state after `record`. Raises UnlistedTransition if the tables do not list it."""
    kind = type(record)
    phase = JOB_TRANSITIONS.get((state.phase, kind))
    if phase is None:
        raise UnlistedTransition(f"{kind.__name__} while the job is {state.phase}")
    if record.time < state.time:
        raise UnlistedTransition(f"{kind.__name__} at {record.time}, before {state.time}")
    after = _HANDLERS[kind](replace(state, phase=phase, time=record.time), record)
    conditions = conditions_.next_conditions(after, record)
    return after if conditions is after.conditions else replace(after, conditions=conditions)


def fold(records: Iterable[Record], state: State | None = None) -> State:
    """The state after these records."""
    return reduce(apply, records, State() if state is None else state)


def _apply_master_claimed(state: State, record: MasterClaimed) -> State:
    if record.epoch <= state.epoch:
        raise UnlistedTransition(f"epoch {record.epoch} after {state.epoch}")
    since = state.since or record.time
    # What could not be read before may be readable by now, or by this version of Everstep.
    damaged_refusals = tuple(refusal for refusal in state.refused if refusal.flaw is Flaw.DAMAGED)
    return replace(
        state,
        epoch=record.epoch,
        address=record.address,
        awake_since=record.time,
        since=since,
        refused=damaged_refusals,
    )


def _apply_master_away(state: State, record: MasterAway) -> State:
    return replace(state, awake_since=record.time)


def _apply_job_reopened(state: State, record: JobReopened) -> State:
    why = "the job was resumed by another master"
    nodes = [
        replace(n if n.phase is P.LOST else node_after(n, record, why, left_at=record.time), left_because=None)
        for n in state.nodes.values()
    ]
    return with_nodes(
        state, *nodes, since=record.time, began_at=0.0, relaunches={}, restarts={}, given_up={}, blamed={}, stalled=0,
        reached=0, ended=None, hang=None, slow=(), finished={}, excused=frozenset(), refused=(), moved_for=(),
        slow_replaced=frozenset(), broken=None, reason="taken up again",
    )  # fmt: skip


def _apply_node_requested(state: State, record: NodeRequested) -> State:
    if record.node in state.nodes:
        raise UnlistedTransition(f"{record.node} was already requested")
    fresh = NodeState(
        record.node, record.role, record.index, record.launch, record.host, record.time,
        replaces=record.replaces, memory_bytes=record.memory_bytes,
    )  # fmt: skip
    return with_nodes(state, node_after(fresh, record), requested_at=record.time)


def _apply_node_appeared(state: State, record: NodeAppeared) -> State:
    before = state.nodes.get(record.node)
    fresh = NodeState(
        record.node, record.role, record.index, before.launch + 1 if before else 0, record.host, record.time,
        phase=before.phase if before else P.ABSENT, action=before.action if before else Action.CONTINUE,
        directive=before.directive if before else 0, life=before.life if before else 0,
        join=before.join if before else 0,
    )  # fmt: skip
    return with_nodes(state, node_after(fresh, record))


def _apply_node_joined(state: State, record: NodeJoined) -> State:
    before = require_node(state, record.node)
    if before.phase is P.RUNNING:
        return with_nodes(state, node_after(before, record, life=record.life, join=record.number))
    # An agent whose long poll ended joins again with another port: it has waited since its first join.
    since = before.joined_at if before.phase in (P.WAITING, P.CHECKING) else record.time
    node = node_after(
        before, record,
        joined_at=since, host=record.host, slots=record.slots, address=record.address, ip=record.ip,
        master_port=record.master_port, holdings=record.holdings, after_round=record.after_round,
        checked=record.checked, zone=record.zone, life=record.life, join=record.number,
    )  # fmt: skip
    return with_nodes(
        state, node, joined_at=max(state.joined_at, since), fastest_start_s=fastest_start(state, before, record.time)
    )


def _apply_node_strayed(state: State, record: NodeStrayed) -> State:
    why = f"it is in round {record.round} and has no place there"
    return with_nodes(
        state, node_after(require_node(state, record.node), record, why, record.round, action=Action.REJOIN)
    )


def _apply_node_leaving(state: State, record: NodeLeaving) -> State:
    before = require_node(state, record.node)
    action = {"action": Action.PERSIST} if before.phase is P.RUNNING else {}
    node = node_after(
        before, record, record.detail, round_number(state),
        leaving_until=record.until, leaving_because=record.reason, **action,
    )  # fmt: skip
    return with_nodes(state, node)


def _apply_node_released(state: State, record: NodeReleased) -> State:
    before = require_node(state, record.node)
    excused_rounds = _excused_rounds(state, before) if before.is_leaving else state.excused
    node = node_after(before, record, record.reason.value, left_at=record.time, left_because=record.reason)
    return with_nodes(state, node, excused=excused_rounds)


def _excused_rounds(state: State, node: NodeState) -> frozenset[int]:
    """The excused rounds now that the node goes: it will not report what happened in its last round."""
    if state.round and node.phase in (P.RUNNING, P.REJOINING) and node.round == state.round.number:
        return state.excused | {state.round.number}
    return state.excused


def _apply_node_lost(state: State, record: NodeLost) -> State:
    before = require_node(state, record.node)
    excused_rounds = _excused_rounds(state, before)
    because = before.left_because or before.leaving_because or record.reason
    action = {"action": Action.REJOIN} if record.may_return else {}
    node = node_after(
        before, record, record.reason.value, round_number(state),
        left_at=record.time, left_because=because, holdings=(), **action,
    )  # fmt: skip
    return with_nodes(state, node, excused=excused_rounds)


def _apply_node_suspected(state: State, record: NodeSuspected) -> State:
    before = require_node(state, record.node)
    excused_rounds = _excused_rounds(state, before)
    node = node_after(before, record, Reason.SUSPECTED.value, record.round, left_at=record.time)
    return with_nodes(state, node, excused=excused_rounds)


def _apply_node_finished(state: State, record: NodeFinished) -> State:
    node = node_after(require_node(state, record.node), record, finished_round=record.round)
    queues = {name: data_queues.without_node(queue, node.name) for name, queue in state.queues.items()}
    return with_nodes(state, node, finished=_count_up(state.finished, node.role), queues=queues)


def _apply_worker_faulted(state: State, record: WorkerFaulted) -> State:
    node = node_after(require_node(state, record.node), record)
    state = with_nodes(
        state, replace(node, faulted_round=record.round), iteration=max(state.iteration, record.iteration)
    )
    round_ = state.round
    if record.reason is Reason.DIVERGED and round_ and round_.restore and record.round == round_.number:
        doubt = Doubt(round_.restore.round, round_.restore.iteration, round_.number)
        state = replace(
            state, doubted=(*(doubt_before for doubt_before in state.doubted if doubt_before != doubt), doubt)
        )
    if record.reason is not Reason.USER_ERROR:
        return replace(state, excused=state.excused | {record.round})
    first = state.blamed.get(record.round)
    if first is None or _blame_order(record) < _blame_order(first):
        return replace(state, blamed={**state.blamed, record.round: record})
    return state


def _blame_order(fault: WorkerFaulted) -> tuple[bool, float, int]:
    """The cause is before its echoes, though it may die after them: it still prints its traceback."""
    return is_echo(fault.error, fault.exit_code), fault.died, fault.rank


def _apply_fault_judged(state: State, record: FaultJudged) -> State:
    node = require_node(state, record.node)
    is_slow = record.reason is Reason.STRAGGLER  # Nothing failed, so it counts as no restart.
    if is_slow and record.decision in RELAUNCHES:
        state = replace(state, slow_replaced=state.slow_replaced | {node.replica})
    elif record.decision is Decision.RESTART or record.decision in RELAUNCHES:
        state = replace(state, restarts=_count_up(state.restarts, node.role))
    if record.decision in RELAUNCHES:
        state = replace(state, relaunches=_count_up(state.relaunches, node.replica))
    if record.decision is Decision.GIVE_UP:
        state = replace(state, given_up={**state.given_up, node.replica: record})
    if record.reason is Reason.USER_ERROR and record.decision is Decision.RELAUNCH_ELSEWHERE:
        state = replace(state, moved_for=(*state.moved_for, state.blamed[record.round]))
    hosts_avoided = state.avoided | {node.host} if record.avoid and node.host else state.avoided
    return replace(state, avoided=hosts_avoided, judged=max(state.judged, record.round))


def _apply_desired_changed(state: State, record: DesiredChanged) -> State:
    asked = state.asked if record.detail else {**state.asked, record.role: record}
    return replace(state, sizes={**state.sizes, record.role: record.nodes}, asked=asked)


def _apply_job_ended(state: State, record: JobEnded) -> State:
    nodes = [
        node_after(n, record, f"the job {record.result.value}", left_at=record.time)
        for n in state.nodes.values()
        if n.phase in LIVE
    ]
    iteration = max(state.iteration, record.iteration)
    return with_nodes(state, *nodes, ended=record, reason=record.reason, iteration=iteration, hang=None)


def _count_up(counts: dict[Any, int], key: object) -> dict[Any, int]:
    return {**counts, key: counts.get(key, 0) + 1}


_HANDLERS: Mapping[type, Callable[[State, Any], State]] = {
    **ROUND_HANDLERS,
    **STORED_HANDLERS,
    MasterClaimed: _apply_master_claimed,
    MasterAway: _apply_master_away,
    JobReopened: _apply_job_reopened,
    NodeRequested: _apply_node_requested,
    NodeAppeared: _apply_node_appeared,
    NodeJoined: _apply_node_joined,
    NodeStrayed: _apply_node_strayed,
    NodeLeaving: _apply_node_leaving,
    NodeReleased: _apply_node_released,
    NodeLost: _apply_node_lost,
    NodeSuspected: _apply_node_suspected,
    NodeFinished: _apply_node_finished,
    WorkerFaulted: _apply_worker_faulted,
    FaultJudged: _apply_fault_judged,
    DesiredChanged: _apply_desired_changed,
    JobEnded: _apply_job_ended,
}
