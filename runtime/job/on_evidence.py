"""What follows from what the nodes know of a state: it is certified, or rejected, and then training steps back."""

from collections.abc import Collection

from everstep.runtime.job import certification
from everstep.runtime.job.events import EvidenceGiven
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import BatchSkipped, StateCertified, StateRejected
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Refused, Transaction
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.protocol.rounds import Round

_DIFFERS_ON_PURPOSE = (
    "if each rank saves something of its own, such as BatchNorm's running means or a random state, train without "
    "certify_interval"
)
REPEATED = 2
"""How often an iteration is unsound until its batch may be skipped, where no limit ends the job: the first time may be
the hardware's."""


def handle_evidence(tx: Transaction, event: EvidenceGiven) -> None:
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
    if place in tx.state.certified and not evidence.is_against:
        return
    evidence_of_place = tx.evidence.setdefault(place, {})
    evidence_of_place[evidence.node, evidence.shard] = evidence
    for late in sorted(tx.evidence)[: -certification.KEPT_EVIDENCE]:
        del tx.evidence[late]
    if not evidence.is_against and not certification.is_complete(evidence_of_place.values(), current):
        return
    verdict = _judge(evidence, evidence_of_place.values(), current)
    tx.evidence = {later: evidence_kept for later, evidence_kept in tx.evidence.items() if later > place}
    if verdict.is_sound:
        tx.record(
            StateCertified(time=tx.now, round=evidence.round, iteration=evidence.iteration, detail=verdict.detail)
        )
    else:
        _reject(tx, evidence, verdict)


def _judge(evidence: Evidence, evidence_of_place: Collection[Evidence], round_: Round) -> certification.Verdict:
    """By `evidence` alone if it tells of a replay. Raises Refused."""
    if not evidence.replay:
        return certification.judge(evidence_of_place)
    try:
        return certification.judge_replay(evidence, round_)
    except IndexError:
        raise Refused(f"{evidence.node} accuses a rank that round {round_.number} does not have") from None


def _reject(tx: Transaction, evidence: Evidence, verdict: certification.Verdict) -> None:
    """Step back; if the same iteration is unsound again, skip its batch or end the job."""
    iteration = evidence.iteration
    tx.record(
        StateRejected(
            time=tx.now, round=evidence.round, iteration=iteration, detail=verdict.detail, nodes=verdict.nodes
        )
    )
    detail = f"the state of iteration {iteration} is unsound: {verdict.detail}"
    tx.break_round(Reason.UNSOUND, detail, verdict.nodes[0] if verdict.nodes else "")
    for name in verdict.nodes:
        tx.judge_fault(tx.state.nodes[name], Reason.UNSOUND, None, evidence.round)
    times, most = tx.state.rejections.get(iteration, 0), tx.spec.patience.same_error
    if times < (most or REPEATED):
        return
    again, skipped_iterations = f"{detail}; this has happened {times} times", tx.state.skipped
    if evidence.doubt and iteration not in skipped_iterations and len(skipped_iterations) < tx.spec.skip_batches:
        what = f"{again}: its batch is skipped ({len(skipped_iterations) + 1} of at most {tx.spec.skip_batches})"
        tx.record(BatchSkipped(time=tx.now, iteration=iteration, detail=what))
    elif most:
        mend = "" if evidence.doubt or evidence.replay or verdict.nodes else f"; {_DIFFERS_ON_PURPOSE}"
        tx.end_job(End(JobResult.FAILED, f"{again}{mend}", exit_code=1))
