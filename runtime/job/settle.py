"""Decides what follows from state and time: commits, losses, hangs, nodes to request or release, rounds, the end.

`settle` runs every rule until none changes the state. `next_deadline` says when a rule will apply without an event.
"""

from everstep.runtime.job import policy, replicas, restore, rounds, termination
from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.records import (
    DesiredChanged,
    HangOver,
    HangSeen,
    JobResult,
    NodeLeaving,
    NodeReleased,
    Reason,
    RoundFormed,
)
from everstep.runtime.job.spec import HangPolicy, StragglerPolicy
from everstep.runtime.job.state import JobPhase, State, round_number
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Transaction, WriteManifest

P = NodePhase
_OUTSIDE_ROUND = (P.REQUESTED, P.WAITING, P.REJOINING)


def settle(case: Transaction) -> rounds.Verdict:
    """Record all that follows, and return the final verdict on membership, which says what the job waits for."""
    while True:
        before = case.state
        _request_manifests(case)
        _expire_deadlines(case)
        _handle_hang(case)
        _resize_roles(case)
        _release_leaving(case)
        _end_if_done(case)
        verdict = _regroup(case)
        if case.state is before:
            return verdict


def next_deadline(case: Transaction, verdict: rounds.Verdict) -> float | None:
    """When to look again although nothing happens; later than now. None: never.

    While nodes live it is never far away, so a long gap between two events means that the master was suspended.
    """
    state, patience = case.state, case.spec.patience
    if state.ended:
        leaves = state.ended.time + patience.leave_s
        return leaves if leaves > case.now else None
    found = [case.liveness.next_deadline(state), verdict.deadline, replicas.next_admission(state, case.spec)]
    found += [deadline for deadline, _, _ in replicas.overdue_scaling(state, case.spec)]
    found += [node.left_at + patience.leave_s for node in _nodes_in(state, (P.RELEASED,))]
    found += [node.leaving_until for node in _nodes_in(state, _OUTSIDE_ROUND, stays=False)]
    if state.hang:
        found.append(state.hang.time + patience.dump_s)
    elif state.phase is JobPhase.RUNNING:
        found.append(case.liveness.start_deadline(case.now))
    due = [deadline for deadline in found if deadline is not None and deadline > case.now]
    if due:
        due.append(case.now + patience.silence_s / 4)
    return min(due, default=None)


def _nodes_in(state: State, phases: tuple[NodePhase, ...], stays: bool = True) -> list[NodeState]:
    """Nodes of all roles in these phases: the leaving ones, and with `stays` also the others."""
    kinds = (False, True) if stays else (True,)
    roles = state.nodes.roles()
    return [node for leaving in kinds for role in roles for node in state.nodes.select(role, phases, leaving)]


def _request_manifests(case: Transaction) -> None:
    for key, checkpoint in case.state.checkpoints.items():
        shards = checkpoint.shards
        if checkpoint.manifest or key in case.committing or not shards.is_complete:
            continue
        case.committing.add(key)
        world = case.state.worlds.get(key[0], 0)
        case.decisions.append(WriteManifest(key[0], key[1], world, tuple(sorted(shards, key=lambda s: s.shard))))


def _expire_deadlines(case: Transaction) -> None:
    if case.state.phase is JobPhase.ENDED:
        return
    for name, reason in case.liveness.pop_expired(case.state, case.now):
        case.lose_node(name, reason)
    if case.state.phase is JobPhase.ENDED:
        return
    for deadline, role, there in list(replicas.overdue_scaling(case.state, case.spec)):
        if case.now >= deadline:
            timeout = case.spec.roles[role].scale_out_timeout_s
            why = f"the others did not join within {timeout:g} s"
            case.record(DesiredChanged(time=case.now, role=role, nodes=there, detail=why))


def _handle_hang(case: Transaction) -> None:
    state, hang = case.state, case.spec.hang
    if state.phase is not JobPhase.RUNNING:
        return
    number = round_number(state)
    if state.hang is None:
        if case.liveness.all_still(state, case.now):
            unmoved = not case.liveness.any_moved
            still_s = hang.start_timeout_s if unmoved else hang.timeout_s
            case.record(HangSeen(time=case.now, round=number, still_s=still_s, unmoved=unmoved))
            case.liveness.begin_dump()
    elif case.liveness.any_moving(state):
        case.record(HangOver(time=case.now, round=number))
    elif case.now >= state.hang.time + case.spec.patience.dump_s or case.liveness.all_dumped(state):
        began = " since they were told to start" if state.hang.unmoved else ""
        why = f"all ranks stood still for {state.hang.still_s:g} s{began}; their stacks are in the nodes' logs"
        if hang.policy is HangPolicy.RESTART:
            case.break_round(Reason.HANG, why)
        elif hang.policy is HangPolicy.FAIL:
            case.end_job(End(JobResult.FAILED, f"round {number} hung: {why}", exit_code=1))


def _resize_roles(case: Transaction) -> None:
    for node in replicas.surplus_nodes(case.state, case.spec):
        if node.phase is P.REQUESTED:
            case.record(NodeReleased(time=case.now, node=node.name, reason=Reason.SCALED))
            continue
        if node.phase in (P.RUNNING, P.FINISHED) and case.state.phase is JobPhase.RUNNING:
            case.break_round(Reason.SCALED, f"scaled down: {node.name} leaves", node.name)
        until = case.now + case.spec.patience.leave_s
        case.record(NodeLeaving(time=case.now, node=node.name, reason=Reason.SCALED, detail="scaled down", until=until))
    for request in replicas.missing_nodes(case.state, case.spec, case.now):
        case.record(request)
        case.mark_alive(request.node)


def _release_leaving(case: Transaction) -> None:
    """Release leaving nodes that are in no round: at once, unless other nodes still read their memory."""
    state = case.state
    if state.phase is JobPhase.ENDED or not state.nodes.any_leaving():
        return
    leaving = _nodes_in(state, _OUTSIDE_ROUND, stays=False)
    serving: set[str] = set()
    if state.phase is JobPhase.FORMING:
        serving = {node.name for node in leaving if node.phase in (P.WAITING, P.REJOINING) and state.round}
    elif state.round and not case.liveness.all_train(state):
        serving = restore.sole_sources(state.round.restore, {node.name for node in leaving})
    for node in leaving:
        if node.name not in serving or case.now >= node.leaving_until:
            because = node.leaving_because or Reason.PREEMPTED
            case.record(NodeReleased(time=case.now, node=node.name, reason=because))


def _end_if_done(case: Transaction) -> None:
    if case.state.phase is JobPhase.ENDED:
        return
    end = termination.end_by_completion(case.state, case.spec) or termination.end_by_fail_policy(case.state, case.spec)
    if end:
        case.end_job(end)


def _regroup(case: Transaction) -> rounds.Verdict:
    verdict = rounds.decide(case.now, case.state, case.spec)
    all_back = not case.state.nodes.total((P.REJOINING,))
    if case.state.phase is JobPhase.FORMING and (all_back or verdict.step is not rounds.Step.WAIT):
        if all_back and _judge_error(case):
            return verdict
        if end := termination.end_by_error_limits(case.state, case.spec, all_back):
            case.end_job(end)
            return rounds.decide(case.now, case.state, case.spec)
    match verdict.step:
        case rounds.Step.FORM:
            assert verdict.round is not None
            if verdict.round.restore is None and (end := termination.end_without_readable_checkpoint(case.state)):
                case.end_job(end)
                return rounds.decide(case.now, case.state, case.spec)
            if not _exclude_stragglers(case):
                start = verdict.round.restore.iteration if verdict.round.restore else 0
                case.liveness.begin_round(start, case.now)
                case.record(RoundFormed(time=case.now, round=verdict.round))
        case rounds.Step.BREAK:
            case.break_round(verdict.cause, verdict.reason, verdict.node)
        case rounds.Step.GIVE_UP:
            case.end_job(termination.end_without_quorum(case.state, verdict.reason))
        case rounds.Step.WAIT:
            pass
    return verdict


def _judge_error(case: Transaction) -> bool:
    """Judge the error that ended the last round, once all its faults are known. Whether it was judged just now."""
    number = round_number(case.state)
    fault = case.state.blamed.get(number)
    if fault is None or number in case.state.excused or case.state.judged >= number:
        return False
    case.judge_fault(case.state.nodes[fault.node], fault.reason, fault.exit_code, number)
    return True


def _exclude_stragglers(case: Transaction) -> bool:
    """Before a round is formed, replace nodes whose check took too long, if the policy says so. Whether there were
    any."""
    if case.spec.stragglers is not StragglerPolicy.EXCLUDE:
        return False
    chosen = [node for nodes in rounds.choose_members(case.state, case.spec).values() for node in nodes]
    slow = policy.stragglers(chosen)
    for node in slow:
        case.judge_fault(node, Reason.STRAGGLER, None, 0)
    return bool(slow)
