"""Process, node, job: what follows when restarts in place do not end an error. Pure.

The order is that of AITrainingJob's and DLRover's operators: `max_restarts` of a process, then relaunches of its pod
elsewhere, then the job. An error that is the same on two machines is the script's own, and no other machine helps.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.runtime.job import fault_policy
from everstep.runtime.job.nodes import LIVE
from everstep.runtime.job.reasons import Decision
from everstep.runtime.job.records import WorkerFaulted
from everstep.runtime.job.spec import JobSpec, Placement
from everstep.runtime.job.state import State, round_number


@dataclass(frozen=True)
class Exceeded:
    """A limit that errors have exceeded since a node was moved last."""

    why: str
    errors: Sequence[WorkerFaulted]
    """Those that exceed it; the newest is the last."""
    is_own: bool = False
    """It happened on two machines, or again after a move: the script's own error."""


@dataclass(frozen=True)
class Move:
    """A node goes to another machine."""

    node: str
    judgement: fault_policy.Judgement


def error_signature(fault: WorkerFaulted) -> tuple[int, int, str]:
    """(iteration, exit code, last line of the traceback): two errors with the same signature are the same error."""
    lines = fault.error.strip().splitlines()
    return fault.iteration, fault.exit_code, lines[-1] if lines else ""


def charged_errors(state: State) -> list[WorkerFaulted]:
    """The errors that count, one per round, since a node was moved last: not those in rounds that a kill or loss
    explains."""
    last_move = max((fault.round for fault in state.moved_for), default=0)
    return [
        fault for number, fault in sorted(state.blamed.items()) if number > last_move and number not in state.excused
    ]


def exceeded_limit(state: State, spec: JobSpec, all_back: bool) -> Exceeded | None:
    """The limit that errors exceed now. Called once the broken round's faults are known.

    `all_back`: every member of that round has reported. Otherwise its error may be an echo, and is not counted.
    """
    errors = [fault for fault in charged_errors(state) if all_back or fault.round != round_number(state)]
    return _repeated_elsewhere(errors, state) or _same_again(errors, state, spec) or _too_many(errors, state, spec)


def next_move(state: State, spec: JobSpec) -> Move | None:
    """The node that moves to another machine because of the error that ended the last round; None: none does.

    Invariant: each move is because of errors that were charged since the last move, and counts against
    `max_relaunches` of its replica.
    """
    limit_hit = exceeded_limit(state, spec, all_back=True)
    if limit_hit is None or obstacle(limit_hit, state, spec) is not None:
        return None
    name, last = _most_blamed(limit_hit), limit_hit.errors[-1]
    fate = fault_policy.judgement(state, spec, state.nodes[name], last.reason, last.exit_code)
    if fate.decision not in (Decision.RESTART, Decision.RELAUNCH):
        return None
    why = f"{limit_hit.why}; it is tried on another machine"
    return Move(name, replace(fate, decision=Decision.RELAUNCH_ELSEWHERE, detail=why))


def obstacle(limit_hit: Exceeded, state: State, spec: JobSpec) -> str | None:
    """Why no other machine is tried, in words that follow the limit's; None if a node can move."""
    node = state.nodes[_most_blamed(limit_hit)]
    if limit_hit.is_own:
        return ", so it is the script's own"
    if spec.placement is Placement.JOINED:
        return ""
    if spec.hosts:
        return "; all nodes are on one machine, so no other was tried"
    moves = state.relaunches.get(node.replica, 0)
    if moves >= spec.patience.max_relaunches:
        return f"; {node.role}-{node.index} was replaced {moves} times, as often as allowed"
    return None if node.phase in LIVE and not node.is_leaving else f"; {node.name} is gone"


def _most_blamed(limit_hit: Exceeded) -> str:
    """The node with the most of these errors; of several the one with the newest."""
    counts = Counter(fault.node for fault in limit_hit.errors)
    return max(reversed(limit_hit.errors), key=lambda fault: counts[fault.node]).node


def _repeated_elsewhere(errors: Sequence[WorkerFaulted], state: State) -> Exceeded | None:
    """The newest error, if it has moved a node before."""
    faults_by_signature = {error_signature(fault): fault for fault in state.moved_for}
    before = faults_by_signature.get(error_signature(errors[-1])) if errors else None
    if before is None:
        return None
    last, hosts = errors[-1], _hosts((before, errors[-1]), state)
    where = f"on {hosts[1]}, as on {hosts[0]} before" if len(hosts) == 2 else f"after {before.node} was replaced"
    return Exceeded(f"the same error at iteration {last.iteration} occurred again {where}", errors, is_own=True)


def _same_again(errors: Sequence[WorkerFaulted], state: State, spec: JobSpec) -> Exceeded | None:
    limit = spec.patience.same_error
    if not errors or not limit:
        return None
    same = [fault for fault in errors if error_signature(fault) == error_signature(errors[-1])]
    if len(same) < limit:
        return None
    times, hosts = "twice" if limit == 2 else f"{limit} times", _hosts(same, state)
    why = f"a rank failed {times} at iteration {same[-1].iteration} with the same error"
    if len(hosts) < 2 or spec.hosts or spec.placement is Placement.JOINED:
        return Exceeded(why, same)
    return Exceeded(f"{why}, on {' and '.join(hosts[:2])}", same, is_own=True)


def _too_many(errors: Sequence[WorkerFaulted], state: State, spec: JobSpec) -> Exceeded | None:
    limit = spec.patience.max_restarts
    if len(errors) <= limit:
        return None
    why = f"{len(errors)} rounds ended with an error, {limit} restarts are allowed"
    for before in state.moved_for:
        hosts = _hosts((before, errors[-1]), state)
        if error_signature(before)[1:] == error_signature(errors[-1])[1:] and len(hosts) == 2:
            return Exceeded(f"{why}, the last one on {hosts[1]}, and on {hosts[0]} before", errors, is_own=True)
    return Exceeded(why, errors)


def _hosts(errors: Sequence[WorkerFaulted], state: State) -> list[str]:
    """The machines on which these errors happened, in order, each once."""
    return list(dict.fromkeys(host for fault in errors if (host := state.nodes[fault.node].host)))
