"""What follows from what the nodes know of a state: it is certified, or rejected, and then training steps back."""

from everstep.runtime.job import certification
from everstep.runtime.job.events import EvidenceGiven
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.records import JobResult, Reason, StateCertified, StateRejected
from everstep.runtime.job.termination import End
from everstep.runtime.job.transaction import Refused, Transaction


def handle_evidence(tx: Transaction, event: EvidenceGiven) -> None:
    """Compare the state once all nodes have told what they know of it; at once if it cannot be sound."""
    given = event.evidence
    node, current, place = tx.require_node(given.node), tx.state.round, (given.round, given.iteration)
    tx.mark_alive(given.node)
    if not 0 <= given.shard < given.shards:
        raise Refused(f"{given.node} tells of shard {given.shard} of {given.shards}")
    if tx.state.phase is not JobPhase.RUNNING or not tx.spec.certify_interval:
        return
    if current is None or not given.round == node.round == current.number:
        return
    if place in tx.state.certified and not given.doubt:
        return
    known = tx.evidence.setdefault(place, {})
    known[given.node, given.shard] = given
    for late in sorted(tx.evidence)[: -certification.KEPT_EVIDENCE]:
        del tx.evidence[late]
    if not given.doubt and not certification.is_complete(known.values(), current):
        return
    verdict = certification.judge(known.values())
    facts = {"time": tx.now, "round": given.round, "iteration": given.iteration, "detail": verdict.detail}
    tx.evidence = {later: kept for later, kept in tx.evidence.items() if later > place}
    if verdict.is_sound:
        tx.record(StateCertified(**facts))
        return
    tx.record(StateRejected(**facts, nodes=verdict.nodes))
    detail = f"the state of iteration {given.iteration} is unsound: {verdict.detail}"
    tx.break_round(Reason.UNSOUND, detail, verdict.nodes[0] if verdict.nodes else "")
    for name in verdict.nodes:
        tx.judge_fault(tx.state.nodes[name], Reason.UNSOUND, None, given.round)
    times = tx.state.rejections.get(given.iteration, 0)
    if tx.spec.patience.same_error and times >= tx.spec.patience.same_error:
        tx.end_job(End(JobResult.FAILED, f"{detail}; it is so for the {times}. time", exit_code=1))
