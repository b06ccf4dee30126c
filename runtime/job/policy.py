"""What a death means and what follows: symptom -> reason -> decision, one table each.

The rules are those of DLRover's exit reasons and torchrun's restart budget: membership changes cost nothing, a user's
error costs one restart, the same error at the same iteration twice ends the job.
"""

from dataclasses import dataclass
from enum import StrEnum

from runtime.job.records import JobResult, Reason, WorkerFaulted
from runtime.job.spec import JobSpec
from runtime.job.state import State


class Decision(StrEnum):
    """What follows from a worker's death."""

    RESTART = "restart in place"
    """The node joins the next round."""
    RELAUNCH = "relaunch"
    """The node leaves; another takes its place."""
    RELAUNCH_ELSEWHERE = "relaunch on another host"
    """The same, and its host is avoided."""


EXITS: dict[int, Reason] = {
    14: Reason.HARDWARE,
    201: Reason.HARDWARE,
    202: Reason.HARDWARE,
    247: Reason.OOM,
    **dict.fromkeys((129, 130, 137, 143), Reason.KILLED),
}
"""Exit codes that mean something; signals count as 128 + number. Every other code is the user's error (1, 134...)."""

DECISIONS: dict[Reason, Decision] = {
    Reason.USER_ERROR: Decision.RESTART,
    Reason.KILLED: Decision.RESTART,
    Reason.OOM: Decision.RELAUNCH,
    Reason.HARDWARE: Decision.RELAUNCH_ELSEWHERE,
}


@dataclass(frozen=True)
class End:
    """The job is over."""

    result: JobResult
    reason: str
    error: str
    exit_code: int


def reason_of(exit_code: int) -> Reason:
    """Why a worker with this exit code (negative: a signal) died."""
    return EXITS.get(128 - exit_code if exit_code < 0 else exit_code, Reason.USER_ERROR)


def signature(fault: WorkerFaulted) -> tuple[int, int, str]:
    """What makes two errors the same one: iteration, exit code, the last line of the traceback."""
    lines = fault.error.strip().splitlines()
    return fault.iteration, fault.exit_code, lines[-1] if lines else ""


def charged(state: State) -> list[WorkerFaulted]:
    """The errors that count, one a round: not those in rounds where a kill or a loss tells why."""
    return [fault for number, fault in sorted(state.blamed.items()) if number not in state.excused]


def verdict(state: State, spec: JobSpec) -> End | None:
    """The end that the job's history calls for. To be asked when all faults of a broken round are known."""
    errors = charged(state)
    seen: set[tuple[int, int, str]] = set()
    for fault in errors:
        if signature(fault) in seen:
            why = f"rank {fault.rank} failed twice at iteration {fault.iteration} with the same error"
            return End(JobResult.FAILED, f"{why}: {_last_line(fault)}", fault.error, 1)
        seen.add(signature(fault))
    if len(errors) > spec.patience.max_restarts:
        last = errors[-1]
        why = f"{len(errors)} rounds ended with an error, {spec.patience.max_restarts} restarts are allowed"
        return End(JobResult.FAILED, f"{why}; rank {last.rank}: {_last_line(last)}", last.error, 1)
    if spec.patience.no_progress and state.stalled >= spec.patience.no_progress:
        error = max(state.blamed.values(), key=lambda fault: fault.round).error if state.blamed else ""
        why = f"{state.stalled} rounds in a row ended without a new iteration; the last one: {state.reason}"
        return End(JobResult.FAILED, why, error, 1)
    return None


def told(fault: WorkerFaulted) -> str:
    """A fault in one line."""
    how = f"signal {-fault.exit_code}" if fault.exit_code < 0 else f"exit {fault.exit_code}"
    return f"{fault.node} rank {fault.rank}: {fault.reason.value} ({how}) at iteration {fault.iteration}"


def _last_line(fault: WorkerFaulted) -> str:
    return signature(fault)[2] or f"exit code {fault.exit_code}"
