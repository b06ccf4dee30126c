"""When a job ends: its roles are complete, or have failed, or its errors exceed a limit."""

from dataclasses import dataclass

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job import escalation
from everstep.runtime.job.checkpoints import refusal_summary
from everstep.runtime.job.reasons import JobResult, Reason
from everstep.runtime.job.records import WorkerFaulted
from everstep.runtime.job.replicas import desired_size
from everstep.runtime.job.restore import unread_checkpoints
from everstep.runtime.job.spec import EndingPolicy, JobSpec
from everstep.runtime.job.state import State
from everstep.runtime.protocol.holdings import Flaw


@dataclass(frozen=True)
class End:
    """The end of a job."""

    result: JobResult
    reason: str
    error: str = ""
    exit_code: int = 0


def end_by_completion(state: State, spec: JobSpec) -> End | None:
    """Success, once enough members of the running round have finished."""
    if not state.finished:
        return None
    completed_roles = {
        role: _is_enough(
            role_spec.complete_policy,
            state.finished.get(role, 0),
            state.members[role],
            _first_node_finished(state, role),
        )
        for role, role_spec in spec.roles.items()
        if role_spec.complete_policy is not EndingPolicy.NONE
    }
    if not _is_enough(
        spec.complete_policy,
        sum(completed_roles.values()),
        len(completed_roles),
        _first_node_finished(state, next(iter(spec.roles))),
    ):
        return None
    summary = ", ".join(f"{count} of {state.members[role]} {role} nodes" for role, count in state.finished.items())
    return End(JobResult.SUCCEEDED, f"{summary} finished")


def end_by_fail_policy(state: State, spec: JobSpec) -> End | None:
    """Failure, once enough nodes were given up."""
    if not state.given_up:
        return None
    bad = {}
    for role, role_spec in spec.roles.items():
        count = sum(place[0] == role for place in state.given_up)
        bad[role] = _is_enough(
            role_spec.fail_policy, count, desired_size(state, spec, role), _first_node_given_up(state, role)
        )
    first = next(iter(spec.roles))
    if not _is_enough(spec.fail_policy, sum(bad.values()), len(bad), _first_node_given_up(state, first)):
        return None
    roles = " and ".join(f"{role} ({spec.roles[role].fail_policy.value})" for role in bad if bad[role])
    failing = roles or f"{first} (the job's {spec.fail_policy.value})"
    return _end_of_given_up(state, f"by the fail policy of {failing}", JobResult.FAILED)


def time_limit(state: State, spec: JobSpec) -> float | None:
    """When the job has lasted as long as it may (Unix time); None: it has no limit, or no round yet."""
    return state.began_at + spec.time_limit_s if spec.time_limit_s and state.began_at else None


def end_by_time_limit(state: State, spec: JobSpec, now: float) -> End | None:
    """Failure, once the job has lasted as long as it may."""
    limit = time_limit(state, spec)
    if limit is None or now < limit:
        return None
    return End(
        JobResult.FAILED,
        f"it lasted {spec.time_limit_s:g} s, its timeLimit, at iteration {state.iteration}",
        exit_code=1,
    )


def end_without_quorum(state: State, reason: str) -> End:
    """The end of a job that cannot reach its minimum; with the script's error if that is the cause."""
    if any(judgement.reason is Reason.USER_ERROR for judgement in state.given_up.values()):
        return _end_of_given_up(state, reason, JobResult.FAILED)
    if state.given_up:
        return _end_of_given_up(state, reason, JobResult.NO_QUORUM)
    return End(JobResult.NO_QUORUM, reason, exit_code=3)


def end_by_error_limits(state: State, spec: JobSpec, all_back: bool) -> End | None:
    """Failure, if errors or rounds without progress exceed a limit. Called once the broken round's faults are known.

    `all_back`: every member of that round has reported. Otherwise its error may be an echo, and is not counted.
    """
    if limit_hit := escalation.exceeded_limit(state, spec, all_back):
        last = limit_hit.errors[-1]
        why = (
            f"{limit_hit.why}{escalation.obstacle(limit_hit, state, spec) or ''}: rank {last.rank}, {_last_line(last)}"
        )
        return End(JobResult.FAILED, why, last.error, 1)
    if has_stalled(state, spec):
        why = f"{state.stalled} rounds in a row ended without a new iteration; the last one: {state.reason}"
        return End(JobResult.FAILED, why, _newest_error(state), 1)
    return None


def has_stalled(state: State, spec: JobSpec) -> bool:
    """Whether as many rounds in a row as may have ended by a fault without a new iteration."""
    return 0 < spec.patience.no_progress <= state.stalled


def end_without_readable_checkpoint(state: State) -> End | None:
    """Failure, if the job would start from nothing although the store has checkpoints that may be intact."""
    refusals = unread_checkpoints(state)
    if not refusals:
        return None
    passing = any(refusal.flaw is Flaw.UNREACHABLE for refusal in refusals)
    mend = "try again, or give up each by `everstep checkpoint drop`"
    mend = mend if passing else "use a newer Everstep, or give up each by `everstep checkpoint drop`"
    why = f"no checkpoint of this job can be read, though some may be complete; {mend}: {refusal_summary(refusals)}"
    return End(JobResult.FAILED, why, exit_code=ExitCode.TRY_AGAIN if passing else ExitCode.BAD_INPUT)


def _is_enough(policy: EndingPolicy, count: int, of: int, first: bool) -> bool:
    return {
        EndingPolicy.ALL: count >= of > 0,
        EndingPolicy.ANY: count > 0,
        EndingPolicy.NONE: False,
        EndingPolicy.RANK0: first,
    }[policy]


def _first_node_finished(state: State, role: str) -> bool:
    assert state.round is not None
    first = state.nodes[state.round.members[role][0].node]
    return first.finished_round == state.round.number


def _first_node_given_up(state: State, role: str) -> bool:
    members = state.round.members.get(role, ()) if state.round else ()
    index = state.nodes[members[0].node].index if members else 0
    return (role, index) in state.given_up


def _end_of_given_up(state: State, why: str, result: JobResult) -> End:
    last = max(state.given_up.values(), key=lambda judgement: judgement.time)
    role, index = next(place for place, judgement in state.given_up.items() if judgement is last)
    own = last.reason is Reason.USER_ERROR
    reason = f"{role}-{index} was given up ({last.reason.value}; {last.detail}); {why}"
    return End(result, reason, _newest_error(state) if own else "", 1 if own else 3)


def _newest_error(state: State) -> str:
    return max(state.blamed.values(), key=lambda fault: fault.round).error if state.blamed else ""


def _last_line(fault: WorkerFaulted) -> str:
    return escalation.error_signature(fault)[2] or f"exit code {fault.exit_code}"
