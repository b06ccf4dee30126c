"""Which nodes a job shall have: functions of its state, made so by whoever creates and deletes nodes."""

from collections.abc import Iterable

import msgspec

from runtime.job.records import NodeReleased, NodeRequested, Reason
from runtime.job.spec import JobSpec
from runtime.job.state import LIVE, JobPhase, NodePhase, NodeState, State


class Wanted(msgspec.Struct, frozen=True):
    """A node that shall exist."""

    name: str
    role: str
    host: str
    create: bool
    """It was asked for and has not joined: make it when it is missing. Else a missing one is lost."""


def size(state: State, spec: JobSpec, role: str) -> int:
    """Nodes asked for in a role: the spec's, or what somebody scaled to."""
    return state.sizes.get(role, spec.roles[role].nodes)


def live(state: State, role: str, phases: Iterable[NodePhase] = LIVE) -> list[NodeState]:
    """The role's nodes in these phases, by index."""
    found = [node for node in state.nodes.values() if node.role == role and node.phase in phases]
    return sorted(found, key=lambda node: (node.index, node.launch))


def wanted(state: State, spec: JobSpec, now: float) -> list[Wanted]:
    """The nodes that shall exist now. A node that was told to leave stays wanted for `leave_s`, to do so by itself."""
    found = []
    for node in state.nodes.values():
        leaving = node.phase is NodePhase.RELEASED and node.joined_at and now < node.left_at + spec.patience.leave_s
        if node.phase in LIVE or leaving:
            found.append(Wanted(node.name, node.role, node.host, node.phase is NodePhase.REQUESTED))
    return found


def missing(state: State, spec: JobSpec, now: float) -> list[NodeRequested]:
    """The nodes to ask for: replacements of lost ones and growth, at the lowest free indices not given up.

    None while the job ends: its last round has finished members, or it is over.
    """
    if state.phase is JobPhase.ENDED or (state.phase is JobPhase.RUNNING and state.finished):
        return []
    asked = []
    for role in spec.roles:
        alive = {node.index for node in live(state, role)}
        free = (
            index
            for index in range(spec.roles[role].nodes)
            if index not in alive and not _given_up(state, spec, role, index)
        )
        for _, index in zip(range(size(state, spec, role) - len(alive)), free, strict=False):
            asked.append(_request(state, spec, role, index, [a.host for a in asked], now))
    return asked


def surplus(state: State, spec: JobSpec, now: float) -> list[NodeReleased]:
    """The nodes beyond the size: those that never joined first, then the highest indices."""
    released = []
    for role in spec.roles:
        nodes = sorted(live(state, role), key=lambda n: (n.phase is NodePhase.REQUESTED, n.index))
        for node in nodes[size(state, spec, role) :]:
            released.append(NodeReleased(time=now, node=node.name, reason=Reason.SCALED))
    return released


def _given_up(state: State, spec: JobSpec, role: str, index: int) -> bool:
    """Another launch of this node would be one replacement too many."""
    previous = _previous(state, role, index)
    counts = previous is not None and previous.left_because is not Reason.SCALED
    return counts and state.relaunches.get((role, index), 0) >= spec.patience.max_relaunches


def _previous(state: State, role: str, index: int) -> NodeState | None:
    """The last launch of a node. Those before the job was taken up anew are not replaced: their place is free."""
    launches = [node for node in state.nodes.values() if node.role == role and node.index == index]
    return max(launches, key=lambda node: node.launch, default=None)


def _request(state: State, spec: JobSpec, role: str, index: int, taken: list[str], now: float) -> NodeRequested:
    previous = _previous(state, role, index)
    launch = previous.launch + 1 if previous else 0
    replaces = previous.name if previous and previous.left_because not in (Reason.SCALED, None) else ""
    host = _place(state, spec, previous, taken)
    return NodeRequested(
        time=now, node=f"{role}-{index}-{launch}", role=role, index=index, launch=launch, host=host, replaces=replaces
    )


def _place(state: State, spec: JobSpec, previous: NodeState | None, taken: list[str]) -> str:
    """The previous launch's host unless it is avoided, else the first free one."""
    if not spec.hosts:
        return ""
    avoided = state.avoided | set(spec.avoid_hosts)
    if previous and previous.host and previous.host not in avoided:
        return previous.host
    used = avoided | set(taken) | {node.host for node in state.nodes.values() if node.phase in LIVE}
    number = 0
    while f"{spec.hosts}{number}" in used:
        number += 1
    return f"{spec.hosts}{number}"
