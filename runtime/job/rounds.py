"""Membership: a pure function of (now, state, spec) that returns what to do, why, and when to look again.

A round is formed at once when every desired node has joined, or every live one and none is on its way. Otherwise, with
at least the minimum, it is formed after a wait: the join window before the first round and for survivors (after
torchrun's elastic rendezvous, "last call"), the replacement wait for replacements and growth. A survivor that missed a
round is not waited for again, nor a replacement where no node has started that fast so far. A running round is broken
to grow, after the cool-down, and to let members leave. Until a round is formed, nodes are only counted, so a join among
10,000 nodes costs as much as one among two.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import msgspec

from everstep.runtime.job import restore
from everstep.runtime.job.nodes import NodePhase, NodeState
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import CALM, Reason
from everstep.runtime.job.replicas import attainable_size, desired_size, sorted_by_index
from everstep.runtime.job.spec import JobSpec, Patience, Placement, RoleSpec
from everstep.runtime.job.state import State, next_round, round_number
from everstep.runtime.job.topology import order_by_place, switches
from everstep.runtime.protocol.messages import FINISH_S
from everstep.runtime.protocol.rounds import Member, Round

MAX_LISTED = 16
"""Hosts that a round's reason lists; the round itself has all of them."""
REJOIN_S = 3.0
"""Seconds that the others wait for a surviving node to join again, at least: it kills its workers first."""

WORD_S = 2.0
"""Seconds that the others wait, after a node was found silent, for what the platform says of it: if it has ended, its
replacement may be in the next round."""

P = NodePhase


class Step(StrEnum):
    """What to do about membership."""

    WAIT = "wait"
    FORM = "form"
    BREAK = "break"
    """End the running round, to grow or to let a member go."""
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
    cause: Reason = Reason.GROW
    """With BREAK."""
    node: str = ""
    """With BREAK: the node that has to leave."""


def decide(now: float, state: State, spec: JobSpec, restart_s: float = 0.0) -> Verdict:
    """The next step of the job's membership. `restart_s`: how long the last round took to its first iteration."""
    if state.phase is JobPhase.ENDED:
        return Verdict(Step.WAIT, state.reason)
    if state.phase is JobPhase.RUNNING:
        return _decide_leaving(now, state, spec) or _decide_resizing(now, state, spec, restart_s)
    return _decide_forming(now, state, spec)


def check_deadline(state: State, spec: JobSpec) -> float:
    """When nodes that test themselves before a restart are taken as they are (Unix time)."""
    return max(state.checks_since, state.awake_since) + spec.patience.check_s


def growth_pause(inside: int, more: int, patience: Patience, restart_s: float = 0.0) -> float:
    """How long a round of `inside` nodes trains on before it is broken for `more`: until these have missed as much work
    as the restart costs. So waiting costs at most as much again as the best choice in hindsight would (ski rental).

    `restart_s`: what the last restart took."""
    cost = max(patience.restart_cost_s, restart_s) if patience.restart_cost_s else 0.0
    return max(patience.cooldown_s, cost * inside / more)


def comes_in_time(state: State, patience: Patience) -> bool:
    """Whether a replacement can come within the replacement wait, as far as earlier starts tell."""
    return state.fastest_start_s <= patience.replacement_wait_s


def usable_count(nodes: int, role: RoleSpec) -> int:
    """How many of these nodes can be in a round: a multiple of the node unit."""
    return nodes - nodes % role.node_unit


def can_do_without(state: State, spec: JobSpec, names: Collection[str]) -> bool:
    """Whether a round of the other nodes, without those on their way, would have the minimum of each role."""
    for role, role_spec in spec.roles.items():
        usable = state.nodes.count(role, (P.WAITING, P.RUNNING)) - sum(
            state.nodes[name].role == role and not state.nodes[name].is_leaving for name in names
        )
        if usable_count(min(usable, desired_size(state, spec, role)), role_spec) < role_spec.least:
            return False
    return True


def rank_order(round_: Round) -> list[str]:
    """The IPs (hosts where no IP is known) of the round's nodes in rank order."""
    return [member.ip or member.host for members in round_.members.values() for member in members]


def _decide_forming(now: float, state: State, spec: JobSpec) -> Verdict:
    if testing := state.nodes.total((P.CHECKING,)):
        return Verdict(Step.WAIT, f"{testing} nodes test themselves", deadline=check_deadline(state, spec))
    waiting = {role: state.nodes.count(role, (P.WAITING,)) for role in spec.roles}
    sizes = {role: desired_size(state, spec, role) for role in spec.roles}
    short = [
        r for r, role_spec in spec.roles.items() if usable_count(min(waiting[r], sizes[r]), role_spec) < role_spec.least
    ]
    if short:
        return _decide_below_minimum(now, state, spec, waiting, short)
    summary = ", ".join(
        f"{min(joined_count, sizes[role])} of {sizes[role]} {role} nodes" for role, joined_count in waiting.items()
    )
    waits = _reasons_to_wait(state, spec, waiting, sizes)
    if not waits:
        short_roles = [role for role in spec.roles if waiting[role] < sizes[role]]
        return _form_round(state, spec, summary + _late_nodes(state, spec, short_roles))
    until = max(deadline for deadline, _ in waits)
    whom = " and ".join(who for _, who in waits)
    if now >= until:
        return _form_round(state, spec, f"{summary}; waited long enough for {whom}")
    return Verdict(Step.WAIT, f"{summary} joined; {whom} on the way", deadline=until)


def _reasons_to_wait(
    state: State, spec: JobSpec, waiting: dict[str, int], sizes: dict[str, int]
) -> list[tuple[float, str]]:
    """(deadline, nodes) of each wait that is worthwhile, given that the minimum has joined.

    Survivors are waited for even if others could take all seats: they hold the state.
    """
    patience, waits = spec.patience, []
    is_first = not state.began_at  # Of a job that was taken up again, too: its nodes all start, none replaces another.
    began = max(state.since, state.awake_since)
    window = max(state.joined_at, began) + patience.join_window_s
    window = min(window, began + patience.join_timeout_s)  # Nodes that come and go cannot delay it forever.
    replacement = max(state.requested_at, state.awake_since) + patience.replacement_wait_s
    replacement = min(replacement, began + max(patience.replacement_wait_s, patience.join_window_s))
    # A node that survived joins again at once, unless it must import everything again: then it is as late as another.
    ends_iteration_s = FINISH_S if state.broken in CALM else 0.0
    rejoin = min(window, began + max(patience.replacement_wait_s, REJOIN_S) + ends_iteration_s)
    for role, joined_count in waiting.items():
        rejoining = state.nodes.count(role, (P.REJOINING,))
        requested_count = state.nodes.count(role, (P.REQUESTED,))
        if rejoining:
            waits.append((rejoin, _name_list(state, role, P.REJOINING, rejoining)))
        if joined_count >= sizes[role]:
            continue
        if spec.placement is Placement.PLATFORM and comes_in_time(state, patience):
            waits += _waits_for_word(state, spec, role)
        if requested_count and (is_first or comes_in_time(state, patience)):
            waits.append((window if is_first else replacement, _name_list(state, role, P.REQUESTED, requested_count)))
        if spec.placement is Placement.JOINED and is_first:
            waits.append((window, f"more {role} nodes"))
        elif spec.placement is Placement.JOINED:
            lost_names = [n.name for n in state.nodes.select(role, (P.LOST,)) if n.round == round_number(state)]
            if lost_names and joined_count < state.members.get(role, 0):
                waits.append((began + patience.replacement_wait_s, f"{', '.join(lost_names[:3])} or another"))
    for role in spec.roles:
        for node in state.nodes.select(role, (P.REJOINING,), leaving=True):
            waits.append((min(node.leaving_until, window), f"{node.name}, to hand over,"))
    return waits


def _waits_for_word(state: State, spec: JobSpec, role: str) -> Iterator[tuple[float, str]]:
    """Of a node of the last round that fell silent the platform may say in a moment that it has ended."""
    for node in state.nodes.select(role, (P.SUSPECTED,)):
        if node.round == round_number(state):
            wait_s = min(WORD_S, spec.patience.replacement_wait_s)
            yield max(node.left_at, state.awake_since) + wait_s, f"what the platform says of {node.name}"


def _late_nodes(state: State, spec: JobSpec, roles: list[str]) -> str:
    """Which nodes are on the way and not worth a wait, for the round's reason."""
    counts = {role: state.nodes.count(role, (P.REQUESTED,)) for role in roles}
    names = [_name_list(state, role, P.REQUESTED, count) for role, count in counts.items() if count]
    if not names:
        return ""
    return f"; not waiting for {' and '.join(names)}: the fastest start so far took {state.fastest_start_s:.0f} s"


def _decide_below_minimum(
    now: float, state: State, spec: JobSpec, waiting: dict[str, int], short: list[str]
) -> Verdict:
    summary = ", ".join(f"{waiting[role]} of at least {spec.roles[role].least} {role} nodes" for role in short)
    if any(attainable_size(state, spec, role) < spec.roles[role].least for role in short):
        return Verdict(Step.GIVE_UP, f"{summary} are left, and no further replacement may be requested")
    began = max(state.since, state.awake_since)
    limits = [
        (spec.roles[role].restart_timeout_s if state.began_at else 0.0) or spec.patience.join_timeout_s
        for role in short
    ]
    deadline = began + min(limits)
    if now >= deadline:
        return Verdict(Step.GIVE_UP, f"{summary} joined within {min(limits):g} s")
    return Verdict(Step.WAIT, f"{summary} joined; waiting for more", deadline=deadline)


def _form_round(state: State, spec: JobSpec, reason: str) -> Verdict:
    members_by_role = choose_members(state, spec)
    first = next(node for nodes in members_by_role.values() for node in nodes)
    members = {
        role: tuple(
            Member(node.name, node.host, node.address, node.slots, node.ip, node.zone, node.master_port)
            for node in nodes
        )
        for role, nodes in members_by_role.items()
    }
    round_ = Round(
        number=next_round(state),
        members=members,
        master_addr=first.address.rpartition(":")[0].strip("[]"),
        master_port=first.master_port,
        restore=restore.newest_restore(state, certified_only=spec.certify_interval > 0),
        reason="",
        certifies=spec.certify_interval,
        loss_spike=spec.loss_spike,
        skips=state.skipped,
        replays=spec.certify_interval * spec.certify_replay,
        framework=spec.framework,
        peer_copies=spec.peer_copies,
    )
    hosts = rank_order(round_)
    more = f" and {len(hosts) - MAX_LISTED} more" if len(hosts) > MAX_LISTED else ""
    reason = f"{reason}; in rank order: {', '.join(hosts[:MAX_LISTED])}{more}"
    fewer = _missing_copies(round_)
    if fewer and (state.round is None or fewer != _missing_copies(state.round)):
        reason = f"{reason}; {fewer}"
    round_ = msgspec.structs.replace(round_, reason=reason)
    return Verdict(Step.FORM, reason, round=round_)


def _missing_copies(round_: Round) -> str:
    """What the round lacks of more than one peer copy, as it has too few machines."""
    machines = {role: len({member.host for member in members}) for role, members in round_.members.items()}
    role, wanted = min(machines, key=lambda name: machines[name]), round_.peer_copies
    if wanted < 2 or machines[role] > wanted:
        return ""
    return f"{machines[role] - 1} of {wanted} peer copies, for machines of its {role} nodes: {machines[role]}"


def choose_members(state: State, spec: JobSpec) -> dict[str, Sequence[NodeState]]:
    """The members of a round formed now, per role in rank order: those of the round before, as they hold the state and
    their workers may have survived, then the lowest indices; sorted by the topology.

    Nodes that came by themselves keep the order of their indices, but for switches that the spec names.
    """
    switch_by_ip, is_placed = switches(spec.topology), spec.placement is Placement.PLATFORM
    turn = {host: number for number, host in enumerate(spec.host_order)}

    def place_of(node: NodeState) -> tuple[str, ...]:
        switch = switch_by_ip.get(node.ip, "")
        return (node.zone, switch, node.host) if is_placed else (switch,)

    first: tuple[str, ...] | None = None
    members_by_role: dict[str, Sequence[NodeState]] = {}
    for role, role_spec in spec.roles.items():
        waiting = sorted_by_index(state.nodes.select(role, (P.WAITING,)))
        size = usable_count(min(len(waiting), desired_size(state, spec, role)), role_spec)
        if size < len(waiting):
            last = round_number(state)
            waiting = sorted_by_index(iter(sorted(waiting, key=lambda node: node.round != last)[:size]))
        members = waiting
        members = sorted(members, key=lambda node: turn.get(node.host, len(turn))) if turn else members
        if first is None:
            first = place_of(members[0]) if members else None
        members_by_role[role] = order_by_place(members, place_of, first)
    return members_by_role


def _decide_leaving(now: float, state: State, spec: JobSpec) -> Verdict | None:
    """Let members leave that have to: once replacements for all of them wait, else shortly before their deadline."""
    leavers = [node for role in spec.roles for node in state.nodes.select(role, (P.RUNNING,), leaving=True)]
    if not leavers or state.finished:  # A member has finished: the round is nearly over.
        return None
    names = ", ".join(node.name for node in leavers[:3]) + (" and others" if len(leavers) > 3 else "")
    because = leavers[0].leaving_because or Reason.PREEMPTED
    if all(state.nodes.count(role, (P.WAITING,)) >= sum(n.role == role for n in leavers) for role in spec.roles):
        why = f"{names} must leave ({because.value}) and the replacement is here"
        return Verdict(Step.BREAK, why, cause=because, node=leavers[0].name)
    deadline = min(node.leaving_until for node in leavers) - spec.patience.handover_s
    if now >= deadline:
        why = f"{names} must leave ({because.value})"
        return Verdict(Step.BREAK, why, cause=because, node=leavers[0].name)
    why = f"round {round_number(state)} runs; {names} must leave soon ({because.value})"
    return Verdict(Step.WAIT, why, deadline=deadline)


def _decide_resizing(now: float, state: State, spec: JobSpec, restart_s: float) -> Verdict:
    """Break a running round that has too many nodes, or, after the cool-down, to add waiting ones.

    The cool-down protects against flapping nodes; a requested change is done without it. While more nodes are on their
    way the round trains on, so that one break suffices for all.
    """
    running = f"round {round_number(state)} runs with {sum(state.members.values())} nodes"
    if state.finished:
        return Verdict(Step.WAIT, f"{running}; {sum(state.finished.values())} have finished")
    if state.hang:
        return Verdict(Step.WAIT, f"{running}; all ranks stand still")
    for role, role_spec in spec.roles.items():
        waiting = state.nodes.count(role, (P.WAITING,))
        inside = state.nodes.count(role, (P.RUNNING,))
        if inside > desired_size(state, spec, role):
            why = f"scaled down: {role} nodes {inside} -> {desired_size(state, spec, role)}"
            return Verdict(Step.BREAK, why, cause=Reason.SCALED)
        larger = usable_count(min(inside + waiting, desired_size(state, spec, role)), role_spec)
        if larger <= inside:
            continue
        asked = state.asked.get(role)
        asked_for = asked is not None and asked.time > state.changed_at
        pause = growth_pause(inside, larger - inside, spec.patience, restart_s)
        deadline = 0.0 if asked_for else max(state.changed_at, state.awake_since) + pause
        if larger < desired_size(state, spec, role) and state.nodes.count(role, (P.REQUESTED,)):
            coming = max(state.requested_at, state.awake_since) + spec.patience.replacement_wait_s
            deadline = max(deadline, coming)
        more = f"{role} nodes {inside} -> {larger}"
        if now >= deadline:
            return Verdict(Step.BREAK, f"growing: {more}")
        return Verdict(Step.WAIT, f"{running}; soon {more}", deadline=deadline)
    return Verdict(Step.WAIT, running)


def _name_list(state: State, role: str, phase: NodePhase, count: int) -> str:
    names = [node.name for node in islice(state.nodes.select(role, (phase,)), 3)]
    return ", ".join(names) + (f" and {count - 3} more" if count > 3 else "")
