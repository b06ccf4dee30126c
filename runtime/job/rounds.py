"""Membership: one pure function of (now, state, spec) -> what to do, why, and when to look again.

Rules: a round is formed at once when every wanted node has joined, or every live one and none is on its way; else,
with at least the minimum, when what is on its way has had its time: the join window before the first round and for
survivors (after torchrun's elastic rendezvous, "last call"), the replacement wait for replacements and growth.
"""

from dataclasses import dataclass
from enum import StrEnum

from runtime.job import restore
from runtime.job.messages import Member, Round
from runtime.job.sizes import live, size
from runtime.job.spec import JobSpec
from runtime.job.state import JobPhase, NodePhase, NodeState, State, member_names


class Step(StrEnum):
    """What to do about membership."""

    WAIT = "wait"
    FORM = "form"
    BREAK = "break"
    """End the running round, to grow."""
    GIVE_UP = "give up"
    """The minimum cannot be had."""


@dataclass(frozen=True)
class Verdict:
    """A decision with its reason."""

    step: Step
    reason: str
    round: Round | None = None
    """With FORM."""
    deadline: float | None = None
    """With WAIT: when the answer changes although nothing happens."""


def decide(now: float, state: State, spec: JobSpec) -> Verdict:
    """The next step of the job's membership."""
    if state.phase is JobPhase.ENDED:
        return Verdict(Step.WAIT, state.reason)
    if state.phase is JobPhase.RUNNING:
        return _grow(now, state, spec)
    return _form(now, state, spec)


def _form(now: float, state: State, spec: JobSpec) -> Verdict:
    waiting = {role: live(state, role, {NodePhase.WAITING}) for role in spec.roles}
    coming = {role: live(state, role, {NodePhase.REQUESTED, NodePhase.REJOINING}) for role in spec.roles}
    short = [role for role, joined in waiting.items() if len(joined) < spec.roles[role].min_nodes]
    if short:
        return _below_minimum(now, state, spec, waiting, coming, short)
    pending = [node for role in spec.roles if len(waiting[role]) < size(state, spec, role) for node in coming[role]]
    told = ", ".join(f"{len(joined)} of {size(state, spec, role)} {role} nodes" for role, joined in waiting.items())
    if not pending:
        return _formed(state, spec, waiting, told)
    last_join = max(node.joined_at for joined in waiting.values() for node in joined)
    deadlines = {node.name: _patience(node, state, spec, last_join) for node in pending}
    if all(now >= deadline for deadline in deadlines.values()):
        return _formed(state, spec, waiting, f"{told}; waited long enough for {_names(pending)}")
    until = max(deadlines.values())
    return Verdict(Step.WAIT, f"{told} joined; {_names(pending)} on the way", deadline=until)


def _below_minimum(
    now: float,
    state: State,
    spec: JobSpec,
    waiting: dict[str, list[NodeState]],
    coming: dict[str, list[NodeState]],
    short: list[str],
) -> Verdict:
    told = ", ".join(f"{len(waiting[role])} of at least {spec.roles[role].min_nodes} {role} nodes" for role in short)
    for role in short:
        if len(waiting[role]) + len(coming[role]) < spec.roles[role].min_nodes:
            return Verdict(Step.GIVE_UP, f"{told} are left, and no replacement may be asked for any more")
    deadline = max(state.since, state.claimed_at) + spec.patience.join_timeout_s
    if now >= deadline:
        return Verdict(Step.GIVE_UP, f"{told} joined within {spec.patience.join_timeout_s:g} s")
    return Verdict(Step.WAIT, f"{told} joined; waiting for more", deadline=deadline)


def _patience(node: NodeState, state: State, spec: JobSpec, last_join: float) -> float:
    """Until when this node is worth waiting for."""
    if node.phase is NodePhase.REJOINING or state.round is None:
        return max(last_join, state.since, state.claimed_at) + spec.patience.join_window_s
    return max(node.requested_at, state.claimed_at) + spec.patience.replacement_wait_s


def _formed(state: State, spec: JobSpec, waiting: dict[str, list[NodeState]], reason: str) -> Verdict:
    chosen = {role: nodes[: size(state, spec, role)] for role, nodes in waiting.items()}
    first = next(node for nodes in chosen.values() for node in nodes)
    members = {
        role: tuple(Member(node.name, node.host, node.address, node.slots) for node in nodes)
        for role, nodes in chosen.items()
    }
    fresh = Round(
        number=(state.round.number if state.round else 0) + 1,
        members=members,
        master_addr=first.address.rpartition(":")[0].strip("[]"),
        master_port=first.master_port,
        restore=restore.choose(restore.holdings(state)),
        reason=reason,
    )
    return Verdict(Step.FORM, reason, round=fresh)


def _grow(now: float, state: State, spec: JobSpec) -> Verdict:
    """Break up a running round when waiting nodes would make it larger and the cool-down is over.

    The cool-down is against nodes that flap; what somebody asked for since the last change is done at once.
    """
    members = member_names(state.round)
    running = f"round {state.round.number if state.round else 0} runs with {len(members)} nodes"
    if state.finished:
        return Verdict(Step.WAIT, f"{running}; {len(state.finished)} have finished")
    for role in spec.roles:
        waiting = live(state, role, {NodePhase.WAITING})
        inside = sum(node.name in members for node in live(state, role))
        room = size(state, spec, role) - inside
        if not waiting or room <= 0:
            continue
        deadline = max(state.changed_at, state.claimed_at) + spec.patience.cooldown_s
        more = f"{role} nodes {inside} -> {inside + min(room, len(waiting))}"
        if now >= deadline or state.asked_at > state.changed_at:
            return Verdict(Step.BREAK, f"growing: {more}")
        return Verdict(Step.WAIT, f"{running}; {more} after the cool-down", deadline=deadline)
    return Verdict(Step.WAIT, running)


def _names(nodes: list[NodeState]) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
