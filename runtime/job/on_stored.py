"""Handles events about states: what the store has, persisted shards, commits, and states that prove unsound."""

from everstep.runtime.job import certification, checkpoints
from everstep.runtime.job.events import (
    DeletionDue,
    EvidenceGiven,
    ManifestWritten,
    RestoreFailed,
    ShardStored,
    Survey,
)
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import (
    Committed,
    Forgotten,
    JobResult,
    PassedOver,
    Reason,
    ShardPersisted,
    StateCertified,
    StateRejected,
    StoreSurveyed,
)
from everstep.runtime.job.state import restore_point, round_number
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Refused, Transaction


def record_survey(tx: Transaction, survey: Survey) -> None:
    """Record checkpoints that the store has but the journal does not know, and pass over damaged or missing ones."""
    state = tx.state
    known = {checkpoint.manifest for checkpoint in state.checkpoints.values()}
    refused = [refusal for refusal in survey.refusals if refusal not in state.refused]
    unjournaled = tuple(
        stored
        for stored in survey.unjournaled
        if stored.key not in known
        and not any(r.covers(shard) for r in (*state.refused, *refused) for shard in stored.shards)
    )
    if unjournaled or survey.rounds > max(round_number(state), state.rounds_before):
        tx.record(StoreSurveyed(time=tx.now, found=unjournaled, rounds=survey.rounds))
    if refused:
        tx.record(PassedOver(time=tx.now, refusals=tuple(refused)))


def on_restore_failed(tx: Transaction, event: RestoreFailed) -> None:
    report, current = event.unrestored, round_number(tx.state)
    tx.require_node(report.node)
    tx.mark_alive(report.node)
    point = restore_point(tx.state)
    refusals = tuple(r for r in report.refusals if (r.round, r.iteration) == point and r not in tx.state.refused)
    if report.round != current or tx.state.phase is JobPhase.ENDED or not refusals:
        return  # Another node has reported it before.
    tx.record(PassedOver(time=tx.now, refusals=refusals, round=current))
    record_survey(tx, event.survey)
    if tx.state.phase is JobPhase.RUNNING:
        tx.break_round(Reason.DAMAGED, checkpoints.refusal_summary(refusals))


def on_shard_stored(tx: Transaction, event: ShardStored) -> None:
    node, shard = event.persisted.node, event.persisted.holding
    tx.require_node(node)
    tx.mark_alive(node)
    if not shard.key or not 0 <= shard.shard < shard.shards or not 0 < shard.round <= round_number(tx.state):
        raise Refused(f"{node} persisted no shard of this job: {shard.key!r} of round {shard.round}")
    key = shard.round, shard.iteration
    checkpoint = tx.state.checkpoints.get(key)
    if checkpoint is None and key <= tx.state.forgotten:
        return
    if checkpoint is None or shard.shard not in checkpoint.shards:
        tx.record(ShardPersisted(time=tx.now, holding=shard))


def on_evidence_given(tx: Transaction, event: EvidenceGiven) -> None:
    """Compare the state once all nodes have told what they know of it; at once if it cannot be sound."""
    evidence = event.evidence
    node, current, place = tx.require_node(evidence.node), tx.state.round, (evidence.round, evidence.iteration)
    tx.mark_alive(evidence.node)
    if not 0 <= evidence.shard < evidence.shards:
        raise Refused(f"{evidence.node} reports shard {evidence.shard} of {evidence.shards}")
    if tx.state.phase is not JobPhase.RUNNING or not tx.spec.certify_interval:
        return
    if current is None or not evidence.round == node.round == current.number:
        return
    if place in tx.state.certified and not evidence.doubt:
        return
    known = tx.evidence.setdefault(place, {})
    known[evidence.node, evidence.shard] = evidence
    for late in sorted(tx.evidence)[: -certification.KEPT_EVIDENCE]:
        del tx.evidence[late]
    if not evidence.doubt and not certification.is_complete(known.values(), current):
        return
    verdict = certification.judge(known.values())
    facts = {"time": tx.now, "round": evidence.round, "iteration": evidence.iteration, "detail": verdict.detail}
    tx.evidence = {later: kept for later, kept in tx.evidence.items() if later > place}
    if verdict.is_sound:
        tx.record(StateCertified(**facts))
        return
    tx.record(StateRejected(**facts, nodes=verdict.nodes))
    detail = f"the state of iteration {evidence.iteration} is unsound: {verdict.detail}"
    tx.break_round(Reason.UNSOUND, detail, verdict.nodes[0] if verdict.nodes else "")
    for name in verdict.nodes:
        tx.judge_fault(tx.state.nodes[name], Reason.UNSOUND, None, evidence.round)
    times = tx.state.rejections.get(evidence.iteration, 0)
    if tx.spec.patience.same_error and times >= tx.spec.patience.same_error:
        tx.end_job(End(JobResult.FAILED, f"{detail}; rejected {times} times", exit_code=1))


def on_manifest_written(tx: Transaction, event: ManifestWritten) -> None:
    tx.committing.discard((event.round, event.iteration))
    tx.record(Committed(time=tx.now, round=event.round, iteration=event.iteration, key=event.key))


def on_deletion_due(tx: Transaction, event: DeletionDue) -> None:
    point = restore_point(tx.state)
    forgotten = tuple(key for key in event.checkpoints if key in tx.state.checkpoints and key != point)
    if forgotten:
        tx.record(Forgotten(time=tx.now, places=forgotten))
