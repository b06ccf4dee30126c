"""The table of faults: symptom -> reason -> decision.

`python -m everstep.runtime.job.fault_policy` prints docs/faults.md.

The rules are those of DLRover's exit reasons, torchrun's restart budget and AITrainingJob's policies: a change of
membership costs nothing, a user's error costs one restart, and one that restarts do not mend moves its node, then ends
the job (`escalation`).
"""

from dataclasses import dataclass

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.nodes import NodeState
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.records import WorkerFaulted
from everstep.runtime.job.spec import (
    FaultRule,
    JobSpec,
    NodeEvent,
    Oom,
    Patience,
    Placement,
    RestartPolicy,
    RestartScope,
    RoleSpec,
)
from everstep.runtime.job.state import RELAUNCHES, State


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    symptom: str
    reason: Reason
    decision: Decision
    limit: str
    """The limit it counts against."""
    exit_codes: tuple[int, ...] = ()
    """Exit codes with this meaning; signals count as 128 + number."""
    tests: bool = False
    """Hardware may be to blame: the survivors test themselves before the next round."""


_NODE_LIMIT = "replacements of the node, restarts of the role"

TABLE = (
    Row("a worker ends with an error, or a signal of its own (SIGABRT, SIGSEGV)", Reason.USER_ERROR, Decision.RESTART,
        "rounds that errors may end; restarts of the role; then the node moves, then the job fails (below)",
        tests=True),
    Row("a worker is killed from outside: SIGKILL, SIGTERM, SIGINT, SIGHUP", Reason.KILLED, Decision.RESTART,
        "restarts of the role", (137, 143, 130, 129)),
    Row("a worker or node ran out of memory: its cgroup counted a kill, exit 247, OOMKilled", Reason.OOM,
        Decision.RELAUNCH, f"{_NODE_LIMIT}; with more memory each time, up to the limit, then the job fails", (247,)),
    Row("a worker or agent ends with an exit code for faulty hardware", Reason.HARDWARE, Decision.EXCLUDE, _NODE_LIMIT),
    Row("the loss is not finite right after a restore: the script ends with exit code 76", Reason.DIVERGED,
        Decision.RESTART,
        "restarts of the role; that state, and what was saved since, is restored again only if there is no other",
        (ExitCode.DIVERGED,), tests=True),
    Row("the state to restore is damaged, missing, written by a later Everstep, or not readable within 30 s",
        Reason.DAMAGED, Decision.STEP_BACK, "nothing; the checkpoint stays in the store"),
    Row("the node's state differs from that of a majority of the nodes that must hold the same state", Reason.UNSOUND,
        Decision.EXCLUDE, _NODE_LIMIT),
    Row("a node is gone: its agent ended, pod deleted, machine not ready", Reason.NODE_LOST,
        Decision.RELAUNCH_ELSEWHERE, _NODE_LIMIT),
    Row("a node ends before it ever joined, or could not be created", Reason.START_FAILED, Decision.RELAUNCH_ELSEWHERE,
        _NODE_LIMIT),
    Row("a node is silent: network loss, machine frozen", Reason.NO_HEARTBEAT, Decision.RELAUNCH_ELSEWHERE,
        _NODE_LIMIT),
    Row("the others stand still, and a node answers neither them nor the master", Reason.SUSPECTED,
        Decision.MEMBERSHIP, "nothing; it joins again when it is back, and is lost if it stays silent"),
    Row("a requested node never joins", Reason.NEVER_JOINED, Decision.RELAUNCH_ELSEWHERE, _NODE_LIMIT),
    Row("a node's check takes more than twice the median; with the policy `replace` also: the others wait for it for a "
        "minute, iteration after iteration", Reason.STRAGGLER, Decision.EXCLUDE,
        "replacements of the node; with the policy `report` it is only reported"),
    Row("the beacons of all ranks stand still, or have never moved in a round", Reason.HANG, Decision.DUMP,
        "rounds in a row without a new iteration", tests=True),
    Row("connections between ranks fail while all of them live, as when a network is interrupted: the processes stay",
        Reason.DISCONNECTED, Decision.RESTART,
        "rounds in a row without a new iteration; what is told later of that round is judged by its own row",
        tests=True),
    Row("a node is told that it will be preempted (SIGTERM to its agent), or its pod was preempted or evicted",
        Reason.PREEMPTED, Decision.HAND_OVER, "nothing"),
    Row("an agent joins again without having reported why", Reason.REJOINED, Decision.MEMBERSHIP, "nothing"),
    Row("nodes share a wider restart scope with a faulty one", Reason.RESTARTED, Decision.HAND_OVER, "nothing"),
    Row("waiting nodes make the round larger", Reason.GROW, Decision.MEMBERSHIP, "nothing; waits for the cool-down"),
    Row("another number of nodes is requested", Reason.SCALED, Decision.MEMBERSHIP, "nothing"),
)  # fmt: skip
"""One row per reason."""

DECISIONS = {row.reason: row.decision for row in TABLE}
_TESTED = frozenset(row.reason for row in TABLE if row.tests)
EXIT_REASONS = {code: row.reason for row in TABLE for code in row.exit_codes}
"""Exit codes with the same meaning in every job; `JobSpec.hardware_exit_codes` take precedence."""
EVENT_REASONS = {
    NodeEvent.NODE_NOT_READY: {Reason.NODE_LOST, Reason.NO_HEARTBEAT},
    NodeEvent.POD_FORCE_DELETED: {Reason.NODE_LOST},
    NodeEvent.POD_EVICTED: {Reason.NODE_LOST, Reason.KILLED},
    NodeEvent.OOM_KILLED: {Reason.OOM},
}
"""The reasons that each event of a fault rule covers."""

WORKER_FAULTS = frozenset({Reason.USER_ERROR, Reason.OOM, Reason.KILLED, Reason.HARDWARE, Reason.DIVERGED})
NODE_FAULTS = frozenset(
    {
        Reason.NODE_LOST, Reason.START_FAILED, Reason.NO_HEARTBEAT, Reason.NEVER_JOINED, Reason.STRAGGLER,
        Reason.KILLED, Reason.HARDWARE, Reason.UNSOUND,
    }
)  # fmt: skip
"""The two kinds of fault that restart policies distinguish; a kill from outside and faulty hardware are both."""


@dataclass(frozen=True)
class Judgement:
    """The decision about one fault."""

    decision: Decision
    detail: str
    scope: RestartScope = RestartScope.POD
    avoid: bool = False


def may_be_hardware(reason: Reason) -> bool:
    """Whether the survivors of a round that ended so test themselves before the next one."""
    return reason in _TESTED


def shell_exit_code(exit_code: int) -> int:
    """An exit code as a shell reports it: signals as 128 + number."""
    return 128 - exit_code if exit_code < 0 else exit_code


def reason_of(exit_code: int, hardware: tuple[int, ...] = (14, 201, 202), oom: bool = False) -> Reason:
    """Why a worker with this exit code (negative: a signal) died; `oom`: its cgroup counted a kill."""
    if oom:
        return Reason.OOM
    code = shell_exit_code(exit_code)
    return Reason.HARDWARE if code in hardware else EXIT_REASONS.get(code, Reason.USER_ERROR)


def judgement(state: State, spec: JobSpec, node: NodeState, reason: Reason, exit_code: int | None = None) -> Judgement:
    """Decide about a fault of the node by the table, its role's policies and the limits."""
    role = spec.roles[node.role]
    code = None if exit_code is None else shell_exit_code(exit_code)
    rule = _matching_rule(role, reason, code)
    restart_policy, scope = (
        (rule.restart_policy, rule.restart_scope) if rule else (role.restart_policy, role.restart_scope)
    )
    avoid = DECISIONS[reason] is Decision.EXCLUDE
    if not _covers(role, restart_policy, reason, code):
        why = f"the restart policy {restart_policy.value} of {node.role} does not cover it"
        return Judgement(Decision.GIVE_UP, why, avoid=avoid)
    memory = memory_of(node, role)
    if reason is Reason.OOM and memory >= spec.oom.limit_bytes and spec.placement is Placement.PLATFORM:
        return Judgement(
            Decision.FAIL, f"it had {_gib(memory)}, the most it may get; use less memory or raise oom.limit"
        )
    decision = DECISIONS[reason]
    by_itself = spec.placement is Placement.JOINED and decision in (Decision.RELAUNCH, Decision.RELAUNCH_ELSEWHERE)
    if by_itself and reason not in WORKER_FAULTS:
        return Judgement(Decision.MEMBERSHIP, "nodes of this job join by themselves")
    has_limit = reason is not Reason.STRAGGLER and role.restart_limit is not None
    if has_limit and state.restarts.get(node.role, 0) >= (role.restart_limit or 0):
        why = f"{node.role} nodes were restarted {role.restart_limit} times, the restart limit (--max-restarts)"
        return Judgement(Decision.GIVE_UP, why, avoid=avoid)
    if by_itself:
        return Judgement(Decision.RESTART, "nodes of this job join by themselves")
    if scope is not RestartScope.POD and decision is Decision.RESTART:
        decision = Decision.RELAUNCH
    times = state.relaunches.get(node.replica, 0)
    if decision in RELAUNCHES and spec.placement is Placement.PLATFORM and times >= spec.patience.max_relaunches:
        return Judgement(Decision.GIVE_UP, f"{node.role}-{node.index} was replaced {times} times", avoid=avoid)
    more = more_memory(memory, spec.oom) if reason is Reason.OOM and memory else 0
    detail = f"with {_gib(more)} of memory instead of {_gib(memory)}" if more else decision.value
    return Judgement(decision, detail, scope, avoid)


def memory_of(node: NodeState, role: RoleSpec) -> int:
    """The node's memory in bytes; 0: all of its host's."""
    return node.memory_bytes or role.resources.memory_bytes


def more_memory(memory: int, oom: Oom) -> int:
    """The memory in bytes of a node that replaces one that ran out of `memory`. By default twice as much, at most 8 GiB
    more, up to 64 GiB."""
    return min(memory + min(int(memory * (oom.factor - 1)), oom.increment_bytes), oom.limit_bytes)


def fault_summary(fault: WorkerFaulted) -> str:
    """A fault in one line."""
    how = f"signal {-fault.exit_code}" if fault.exit_code < 0 else f"exit {fault.exit_code}"
    return f"{fault.node} rank {fault.rank}: {fault.reason.value} ({how}) at iteration {fault.iteration}"


def _matching_rule(role: RoleSpec, reason: Reason, code: int | None) -> FaultRule | None:
    for rule in role.fault_rules:
        if code in rule.exit_codes or any(reason in EVENT_REASONS[event] for event in rule.events):
            return rule
    return None


def _covers(role: RoleSpec, policy: RestartPolicy, reason: Reason, code: int | None) -> bool:
    is_listed = any(code in rule.exit_codes for rule in role.fault_rules)
    return {
        RestartPolicy.ALWAYS: True,
        RestartPolicy.NEVER: False,
        RestartPolicy.ON_FAILURE: reason in WORKER_FAULTS,
        RestartPolicy.EXIT_CODE: is_listed,
        RestartPolicy.ON_NODE_FAIL: reason in NODE_FAULTS,
        RestartPolicy.ON_NODE_FAIL_WITH_EXIT_CODE: is_listed or reason in NODE_FAULTS,
    }[policy]


def _gib(memory: int) -> str:
    return f"{memory / (1 << 30):g} GiB"


def render() -> str:
    """The table as Markdown."""
    hardware = ", ".join(map(str, JobSpec("", {}).hardware_exit_codes))
    lines = [
        "# What follows from a fault",
        "",
        "Made from `runtime/job/fault_policy.py` by `python -m everstep.runtime.job.fault_policy > docs/faults.md`; a",
        "test keeps it true.",
        "",
        "| symptom | exit codes | reason | decision | survivors test themselves | counts against |",
        "|---|---|---|---|---|---|",
    ]
    for row in TABLE:
        codes = ", ".join(map(str, sorted(row.exit_codes))) or (hardware if row.reason is Reason.HARDWARE else "")
        lines.append(
            f"| {row.symptom} | {codes} | {row.reason.value} | {row.decision.value}"
            f" | {'yes' if row.tests else ''} | {row.limit} |"
        )
    lines += [
        "",
        "Signals count as 128 + number. The exit codes for hardware are `hardware_exit_codes` of the job.",
        "If a fault has ended a round, later errors in that round are its echoes and count against nothing. Not so if",
        "connections have failed: a rank that ended by an error of its own may be why.",
        "",
        f"Survivors that test themselves take at most {Patience().check_s:g} s (`check`): matrix products on all cores",
        "or each device, memory, an all-reduce. A node that fails is replaced on another host; this counts against",
        "nothing.",
        "",
        "**Process, node, job.** If restarts in place do not end an error (the first two limits below), its node moves",
        "to another machine, at most `max_relaunches` times. If the same error then occurs there at the same",
        "iteration, or has occurred on two machines before, it is the script's own: the job fails at once and says so.",
        "If all nodes are on one machine, or join by themselves, the job fails without a move.",
        "",
        *_render_limits(Patience(), Oom(), "the node moves, then the job fails"),
        "",
        "Giving up a node ends the job only if fewer than the minimum remain (exit code 3), or if the `fail_policy` of",
        "its role says so.",
        "",
        "| restart policy of a role | faults that cause a restart |",
        "|---|---|",
    ]
    lines += [f"| {policy.value} | {_covered_faults(policy)} |" for policy in RestartPolicy]
    lines += [
        "",
        "A fault rule (`faultTolerantPolicy`) replaces the restart policy for its exit codes or events:",
        "",
        "| event of a fault rule | means |",
        "|---|---|",
    ]
    for event, reasons in EVENT_REASONS.items():
        lines.append(f"| {event.value} | {', '.join(row.reason.value for row in TABLE if row.reason in reasons)} |")
    return "\n".join(lines) + "\n"


def _render_limits(patience: Patience, oom: Oom, moves: str) -> list[str]:
    """The limits of retries, as lines of Markdown."""
    return [
        "| limit | default | then |",
        "|---|---|---|",
        f"| rounds that errors may end (`max_restarts`) | {patience.max_restarts} | {moves} |",
        f"| the same error at the same iteration (`same_error`) | {patience.same_error} | {moves} |",
        f"| replacements of a node (`max_relaunches`) | {patience.max_relaunches} | the node is given up |",
        "| restarts of a role (`restart_limit`) | none | the node is given up |",
        f"| consecutive rounds that a fault ends without a new iteration (`no_progress`) | {patience.no_progress} |"
        " the job fails |",
        f"| memory after running out of it | x {oom.factor:g}, at most {_gib(oom.increment_bytes)} more at once,"
        f" up to {_gib(oom.limit_bytes)} | the job fails |",
    ]


def _covered_faults(policy: RestartPolicy) -> str:
    code = 77
    role = RoleSpec(1, 1, fault_rules=(FaultRule(exit_codes=(code,)),))
    reasons = [row.reason for row in TABLE if row.reason in WORKER_FAULTS | NODE_FAULTS]
    names = [reason.value for reason in reasons if _covers(role, policy, reason, None)]
    if _covers(role, policy, Reason.USER_ERROR, code) and Reason.USER_ERROR.value not in names:
        names.append("exit codes that a fault rule lists")
    return ", ".join(names) or "nothing"


if __name__ == "__main__":
    print(render(), end="")
