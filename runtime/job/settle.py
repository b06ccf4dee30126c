"""Decides what follows from state and time: commits, losses, hangs, nodes to request or release, rounds, the end.

`settle` runs every rule until none changes the state. `next_deadline` says when a rule will apply without an event.
"""

from collections.abc import Iterator
from dataclasses import replace

from everstep.runtime.job import escalation, fault_policy, replicas, restore, rounds, termination
from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import UNEXPLAINED, JobResult, Reason
from everstep.runtime.job.records import (
    CheckOver,
    CheckRequested,
    DesiredChanged,
    HangExplained,
    HangOver,
    HangSeen,
    NodeLeaving,
    NodeReleased,
    NodeSuspected,
    RoundFormed,
    SlowSeen,
)
from everstep.runtime.job.slow_checks import stragglers
from everstep.runtime.job.slow_nodes import replacement
from everstep.runtime.job.spec import HangPolicy, StragglerPolicy
from everstep.runtime.job.state import State, round_number
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Transaction, WriteManifest
from everstep.runtime.watch.hang_culprit import judge

P = NodePhase
_MOST_NAMED = 3
_MOST_RANKS, _LONGEST_EXPLANATION = 64, 4096
"""Of a record about those that others wait for."""
_OUTSIDE_ROUND = (P.REQUESTED, P.WAITING, P.CHECKING, P.REJOINING, P.SUSPECTED)


def settle(tx: Transaction) -> rounds.Verdict:
    """Record all that follows, and return the final verdict on membership, which says what the job waits for."""
    while True:
        before = tx.state
        _request_manifests(tx)
        _expire_deadlines(tx)
        _leave_out_silent(tx)
        _handle_hang(tx)
        _handle_slow(tx)
        _resize_roles(tx)
        _release_leaving(tx)
        _end_if_done(tx)
        verdict = _regroup(tx)
        if tx.state is before:
            return verdict


def next_deadline(tx: Transaction, verdict: rounds.Verdict) -> float | None:
    """When to look again although nothing happens; later than now. None: never.

    While nodes live it is never far away, so a long gap between two events means that the master was suspended.
    """
    state, patience = tx.state, tx.spec.patience
    if state.ended:
        leaves = state.ended.time + patience.leave_s
        return leaves if leaves > tx.now else None
    deadlines = [
        tx.liveness.next_deadline(state),
        *tx.liveness.accusations.deadlines,
        verdict.deadline,
        replicas.next_admission(state, tx.spec),
        termination.time_limit(state, tx.spec),
    ]
    deadlines += [deadline for deadline, _, _ in replicas.overdue_scaling(state, tx.spec)]
    deadlines += [node.left_at + patience.leave_s for node in _nodes_in(state, (P.RELEASED,))]
    deadlines += [node.leaving_until for node in _nodes_in(state, _OUTSIDE_ROUND, stays=False)]
    if state.hang:
        deadlines.append(state.hang.time + patience.dump_s)
    elif state.phase is JobPhase.RUNNING:
        deadlines.append(tx.liveness.start_deadline(tx.now))
    due = [deadline for deadline in deadlines if deadline is not None and deadline > tx.now]
    if due:
        due.append(tx.now + patience.silence_s / 4)
    return min(due, default=None)


def _nodes_in(state: State, phases: tuple[NodePhase, ...], stays: bool = True) -> list[NodeState]:
    """Nodes of all roles in these phases: the leaving ones, and with `stays` also the others."""
    kinds = (False, True) if stays else (True,)
    roles = state.nodes.roles()
    return [node for leaving in kinds for role in roles for node in state.nodes.select(role, phases, leaving)]


def _request_manifests(tx: Transaction) -> None:
    for key, checkpoint in tx.state.checkpoints.items():
        shards = checkpoint.shards
        if checkpoint.manifest or key in tx.committing or not shards.is_complete or _may_be_certified(tx, key):
            continue
        tx.committing.add(key)
        world = tx.state.worlds.get(key[0], 0)
        every = tuple(sorted(shards, key=lambda s: s.shard))
        tx.decisions.append(WriteManifest(*key, world, every, is_certified=key in tx.state.certified))


def _may_be_certified(tx: Transaction, place: tuple[int, int]) -> bool:
    """Whether a verdict on that state is still to come: its manifest says whether it is certified."""
    every, state = tx.spec.certify_interval, tx.state
    if not every or place[1] % every or place in state.certified:
        return False
    newest = max(state.certified, default=(0, 0))
    return state.phase is JobPhase.RUNNING and place[0] == round_number(state) and place > newest


def _expire_deadlines(tx: Transaction) -> None:
    if tx.state.phase is JobPhase.ENDED:
        return
    for name, reason in tx.liveness.pop_expired(tx.state, tx.now):
        tx.lose_node(name, reason)
    if tx.state.phase is JobPhase.ENDED:
        return
    if tx.state.nodes.total((P.CHECKING,)) and tx.now >= rounds.check_deadline(tx.state, tx.spec):
        late = [node.name for node in _nodes_in(tx.state, (P.CHECKING,))]
        tx.record(CheckOver(time=tx.now, round=tx.state.check_round, nodes=tuple(sorted(late)[:_MOST_NAMED])))
    for deadline, role, count in list(replicas.overdue_scaling(tx.state, tx.spec)):
        if tx.now >= deadline:
            timeout = replicas.scale_out_timeout_s(tx.state, tx.spec, role)
            why = f"the others did not join within {timeout:g} s"
            tx.record(DesiredChanged(time=tx.now, role=role, nodes=count, detail=why))


def _leave_out_silent(tx: Transaction) -> None:
    """Break the round without the members that answer nobody, if it can go on without them. While a round is formed,
    stop waiting for them."""
    state = tx.state
    if state.phase is JobPhase.ENDED or state.finished or not tx.liveness.accusations:
        return
    suspects = tx.liveness.suspects(state, tx.now)
    number = round_number(state)
    if suspects and state.phase is JobPhase.RUNNING:
        if not rounds.can_do_without(state, tx.spec, suspects):
            return
        name, askers = next(iter(suspects.items()))
        more = f" and {len(suspects) - 1} more nodes" if len(suspects) > 1 else ""
        tx.break_round(Reason.SUSPECTED, f"{name}{more}: no answer to {', '.join(askers[:3])}, nor a heartbeat", name)
    for name, askers in suspects.items():
        tx.record(NodeSuspected(time=tx.now, node=name, round=number, by=askers))


def _handle_hang(tx: Transaction) -> None:
    state, hang = tx.state, tx.spec.hang
    if state.phase is not JobPhase.RUNNING:
        return
    number = round_number(state)
    if state.hang is None:
        if tx.liveness.all_still(state, tx.now):
            still_s, unmoved = tx.liveness.still_s(state), not tx.liveness.any_moved
            tx.record(HangSeen(time=tx.now, round=number, still_s=still_s, unmoved=unmoved))
            tx.liveness.begin_dump()
    elif tx.liveness.any_moving(state):
        tx.record(HangOver(time=tx.now, round=number))
    elif tx.now >= state.hang.time + tx.spec.patience.dump_s or tx.liveness.all_dumped(state):
        why = _explain_hang(tx, state.hang)
        if hang.policy is HangPolicy.RESTART:
            tx.break_round(Reason.HANG, why)
        elif hang.policy is HangPolicy.FAIL:
            tx.end_job(End(JobResult.FAILED, f"round {number} hung: {why}", exit_code=1))


def _handle_slow(tx: Transaction) -> None:
    """Say once which node the others wait for, and its slow part; replace it if the policy says so."""
    for slow in tx.liveness.slow_nodes.stragglers:
        state, verdict = tx.state, slow.verdict
        if state.phase is not JobPhase.RUNNING or state.hang or slow.node not in state.nodes:
            return
        number, node = round_number(state), state.nodes[slow.node]
        if not any((slow_node.node, slow_node.part) == (slow.node, verdict.part) for slow_node in state.slow):
            tx.record(
                SlowSeen(
                    time=tx.now, round=number, node=slow.node, ranks=verdict.ranks[:_MOST_RANKS], part=verdict.part,
                    detail=f"{slow.node}: {verdict.sentence}",
                )
            )  # fmt: skip
        if fate := replacement(tx.state, tx.spec, slow):
            tx.break_round(Reason.STRAGGLER, f"{slow.node} is replaced: {verdict.sentence}", slow.node)
            tx.carry_out(node, Reason.STRAGGLER, number, replace(fate, detail=f"{fate.detail}; {verdict.sentence}"))


def _explain_hang(tx: Transaction, hang: HangSeen) -> str:
    """Say once who keeps the others waiting; returns why the round is over."""
    explanation = hang.explanation
    if not explanation:
        verdict = judge(tx.liveness.standings)
        explanation = verdict.sentence[:_LONGEST_EXPLANATION]
        ranks = verdict.ranks[:_MOST_RANKS]
        tx.record(HangExplained(time=tx.now, round=hang.round, ranks=ranks, detail=explanation))
    began = " since they were told to start" if hang.unmoved else ""
    return f"all ranks stood still for {hang.still_s:g} s{began}; {explanation}; their stacks are in the nodes' logs"


def _resize_roles(tx: Transaction) -> None:
    for node in replicas.surplus_nodes(tx.state, tx.spec):
        if node.phase is P.REQUESTED:
            tx.record(NodeReleased(time=tx.now, node=node.name, reason=Reason.SCALED))
            continue
        if node.phase in (P.RUNNING, P.FINISHED) and tx.state.phase is JobPhase.RUNNING:
            tx.break_round(Reason.SCALED, f"scaled down: {node.name} leaves", node.name)
        until = tx.now + tx.spec.patience.leave_s
        tx.record(NodeLeaving(time=tx.now, node=node.name, reason=Reason.SCALED, detail="scaled down", until=until))
    for request in replicas.missing_nodes(tx.state, tx.spec, tx.now):
        tx.record(request)
        tx.mark_alive(request.node)


def _release_leaving(tx: Transaction) -> None:
    """Release leaving nodes that are in no round: at once, unless other nodes still read their memory."""
    state = tx.state
    if state.phase is JobPhase.ENDED or not state.nodes.any_leaving():
        return
    leaving = _nodes_in(state, _OUTSIDE_ROUND, stays=False)
    serving: set[str] = set()
    if state.phase is JobPhase.FORMING:
        serving = {node.name for node in leaving if node.phase is not P.REQUESTED and state.round}
    elif state.round and not tx.liveness.all_train(state):
        serving = restore.sole_sources(state.round.restore, {node.name for node in leaving})
    for node in leaving:
        if node.name not in serving or tx.now >= node.leaving_until:
            because = node.leaving_because or Reason.PREEMPTED
            tx.record(NodeReleased(time=tx.now, node=node.name, reason=because))


def _end_if_done(tx: Transaction) -> None:
    if tx.state.phase is JobPhase.ENDED:
        return
    end = (
        termination.end_by_completion(tx.state, tx.spec)
        or termination.end_by_fail_policy(tx.state, tx.spec)
        or termination.end_by_time_limit(tx.state, tx.spec, tx.now)
    )
    if end:
        tx.end_job(end)


def _regroup(tx: Transaction) -> rounds.Verdict:
    verdict = rounds.decide(tx.now, tx.state, tx.spec, tx.liveness.restart_s)
    all_back = not tx.state.nodes.total((P.REJOINING,))
    if tx.state.nodes.total((P.CHECKING,)):
        return verdict
    if tx.state.phase is JobPhase.FORMING and (all_back or verdict.step is not rounds.Step.WAIT):
        if all_back and (_request_check(tx) or _judge_error(tx)):
            return verdict
        if end := termination.end_by_error_limits(tx.state, tx.spec, all_back):
            tx.end_job(end)
            return rounds.decide(tx.now, tx.state, tx.spec, tx.liveness.restart_s)
    match verdict.step:
        case rounds.Step.FORM:
            assert verdict.round is not None
            if verdict.round.restore is None and (end := termination.end_without_readable_checkpoint(tx.state)):
                tx.end_job(end)
                return rounds.decide(tx.now, tx.state, tx.spec, tx.liveness.restart_s)
            if not _exclude_stragglers(tx):
                start = verdict.round.restore.iteration if verdict.round.restore else 0
                tx.liveness.begin_round(start, tx.now)
                tx.record(RoundFormed(time=tx.now, round=verdict.round))
        case rounds.Step.BREAK:
            tx.break_round(verdict.cause, verdict.reason, verdict.node)
        case rounds.Step.GIVE_UP:
            tx.end_job(termination.end_without_quorum(tx.state, verdict.reason))
        case rounds.Step.WAIT:
            pass
    return verdict


def _request_check(tx: Transaction) -> bool:
    """Have the last round's nodes test themselves if hardware may be why it ended. Returns whether it told them now.

    An error or a failed connection that follows from a kill or a loss asks for none: by now all members have reported
    what happened. Nor does a round after which the job ends.
    """
    state, number = tx.state, round_number(tx.state)
    if not tx.spec.patience.check_s or state.check_round >= number or state.broken is None:
        return False
    is_echo = state.broken in UNEXPLAINED and number in state.excused
    if is_echo or termination.has_stalled(state, tx.spec) or not fault_policy.may_be_hardware(state.broken):
        return False
    if not any(node.round == number for node in _waiting_nodes(state)):
        return False
    tx.record(CheckRequested(time=tx.now, round=number))
    return True


def _waiting_nodes(state: State) -> Iterator[NodeState]:
    return (node for role in state.members for node in state.nodes.select(role, (P.WAITING,)))


def _judge_error(tx: Transaction) -> bool:
    """Judge the error that ended the last round, once all its faults are known. Whether it was judged just now."""
    number = round_number(tx.state)
    fault = tx.state.blamed.get(number)
    if fault is None or number in tx.state.excused or tx.state.judged >= number:
        return False
    if move := escalation.next_move(tx.state, tx.spec):
        tx.carry_out(tx.state.nodes[move.node], fault.reason, number, move.judgement)
    else:
        tx.judge_fault(tx.state.nodes[fault.node], fault.reason, fault.exit_code, number)
    return True


def _exclude_stragglers(tx: Transaction) -> bool:
    """Before a round is formed, replace nodes whose check took too long, if the policy says so. Whether there were
    any."""
    if tx.spec.stragglers is StragglerPolicy.REPORT:
        return False
    members = [node for nodes in rounds.choose_members(tx.state, tx.spec).values() for node in nodes]
    slow = stragglers(members)
    for node in slow:
        tx.judge_fault(node, Reason.STRAGGLER, None, 0)
    return bool(slow)
