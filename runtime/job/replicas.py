"""The desired nodes of a job: pure functions of its state, which the reconcile loop carries out.

The gang comes first: the minimum of every role, higher priorities before others. Then come the extra nodes, which are
also the first to leave. A role that waits for others gets its nodes once theirs have joined.
"""

import math
from collections.abc import Iterator
from itertools import count, islice

import msgspec
from msgspec.structs import replace

from everstep.runtime.job.fault_policy import DECISIONS, memory_of, more_memory
from everstep.runtime.job.nodes import JOINED, LIVE, NodePhase, NodeState
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.records import NodeRequested
from everstep.runtime.job.spec import CleanPodPolicy, JobSpec, Placement, Resources
from everstep.runtime.job.state import State

_GONE_PHASES = (NodePhase.RELEASED, NodePhase.LOST)


class DesiredNode(msgspec.Struct, frozen=True):
    """A node that must exist."""

    name: str
    role: str
    host: str
    index: int
    not_on: str
    """The machine that a fault of the node before took it from: any other one is preferred. Empty: none."""
    create: bool
    """It has not joined yet: create it if it is missing. If False, a missing node is lost."""
    resources: Resources = Resources()
    """With the memory of this particular node."""
    priority: int = 0
    extra: bool = False
    """Beyond the minimum: created last, and the first to be preempted."""


def desired_size(state: State, spec: JobSpec, role: str) -> int:
    """The desired number of nodes of a role: the spec's, or the newest scaling's."""
    return state.sizes.get(role, spec.roles[role].nodes)


def sorted_by_index(nodes: Iterator[NodeState]) -> list[NodeState]:
    """The nodes in the order in which they are chosen for a round: lowest index first."""
    return sorted(nodes, key=lambda node: (node.index, node.launch, node.name))


def desired_nodes(state: State, spec: JobSpec, now: float) -> list[DesiredNode]:
    """The nodes that must exist now, in the order of creation.

    A node that was told to leave stays desired for `leave_s`, so that it can end by itself. After the job's end the
    clean policy says what else stays: with `None` all nodes, with `Running` those that have ended by themselves.
    """
    if spec.placement is Placement.JOINED:
        return []
    termination = state.phase is JobPhase.ENDED
    spared = {CleanPodPolicy.ALL: (), CleanPodPolicy.RUNNING: (NodePhase.LOST,)}.get(
        spec.clean_pod_policy, (NodePhase.LOST, NodePhase.RELEASED)
    )
    desired = []
    for node in state.nodes.values():
        leaving = node.phase is NodePhase.RELEASED and node.joined_at and now < node.left_at + spec.patience.leave_s
        if node.phase in LIVE or leaving or (termination and node.phase in spared):
            desired.append(_desired_node(node, state, spec))
    return sorted(desired, key=lambda node: (node.extra, -node.priority))


def _desired_node(node: NodeState, state: State, spec: JobSpec) -> DesiredNode:
    previous = state.nodes.get(node.replaces)
    role = spec.roles[node.role]
    return DesiredNode(
        name=node.name,
        role=node.role,
        host=node.host,
        index=node.index,
        not_on=previous.host if previous and _must_move(previous) else "",
        create=node.phase is NodePhase.REQUESTED,
        resources=replace(role.resources, memory_bytes=memory_of(node, role)),
        priority=role.priority,
        extra=node.index >= role.least,
    )


def missing_nodes(state: State, spec: JobSpec, now: float) -> list[NodeRequested]:
    """The nodes to request: replacements and growth, at the lowest free indices that were not given up.

    No nodes once a member of the running round has finished or the job is over, and none with placement `joined`.
    """
    if spec.placement is Placement.JOINED or state.phase is JobPhase.ENDED or state.finished:
        return []
    short = {role: lack for role, lack in _shortages(state, spec) if now >= admission_time(state, spec, role)}
    if not short:
        return []
    places = _Allocator(state, spec)
    places_chosen = [place for role, lack in short.items() for place in places.free_replicas(role, lack)]
    roles = spec.roles
    places_chosen.sort(key=lambda place: (place[1] >= roles[place[0]].least, -roles[place[0]].priority))
    return [places.allocate(role, index, now) for role, index in places_chosen]


def surplus_nodes(state: State, spec: JobSpec) -> list[NodeState]:
    """The nodes beyond the desired size and its spares: first those that have not joined, then the highest indices."""
    if spec.placement is Placement.JOINED or state.phase is JobPhase.ENDED:
        return []
    surplus = []
    for role in spec.roles:
        most = desired_size(state, spec, role) + spec.roles[role].spare_nodes
        if state.nodes.count(role, LIVE) > most:
            nodes = sorted_by_index(state.nodes.select(role, LIVE))
            nodes.sort(key=lambda node: node.phase is NodePhase.REQUESTED)
            surplus += nodes[most:]
    return surplus


def overdue_scaling(state: State, spec: JobSpec) -> Iterator[tuple[float, str, int]]:
    """(deadline, role, number of nodes that are here) for each role whose scaling waits for nodes to join."""
    for role, role_spec in spec.roles.items():
        timeout_s, asked = scale_out_timeout_s(state, spec, role), state.asked.get(role)
        if not timeout_s or asked is None:
            continue
        requested = state.nodes.select(role, (NodePhase.REQUESTED,))
        late = [max(since, asked.time) for node in requested if (since := _awaited_since(state, node)) is not None]
        if late:
            attainable = max(state.nodes.count(role, LIVE) - len(late), role_spec.min_nodes)
            if attainable < desired_size(state, spec, role):
                yield max(max(late), state.awake_since) + timeout_s, role, attainable


def _awaited_since(state: State, node: NodeState) -> float | None:
    """When a new node was requested: itself, or the first of those before it that failed without having joined. None:
    the job has had this node; what is requested is its replacement."""
    while node.replaces:
        node = state.nodes[node.replaces]
        if node.joined_at:
            return None
    return node.requested_at


def scale_out_timeout_s(state: State, spec: JobSpec, role: str) -> float:
    """How long new nodes may take to join after the newest request; 0: any time."""
    if spec.placement is Placement.JOINED:
        return 0.0
    asked = state.asked.get(role)
    return (asked.timeout_s if asked else 0.0) or spec.roles[role].scale_out_timeout_s


def attainable_size(state: State, spec: JobSpec, role: str) -> float:
    """How many nodes the role can still get, without replicas that were given up; inf with placement `joined`."""
    if spec.placement is Placement.JOINED:
        return math.inf
    return max(state.nodes.count(role, LIVE), min(_target_size(state, spec, role), desired_size(state, spec, role)))


def admission_time(state: State, spec: JobSpec, role: str) -> float:
    """When nodes of this role may be requested (Unix time), given the roles it waits for; 0: at once, inf: not yet.

    Those roles must have their minimum, and either no outstanding requests or no new node for the join window.
    """
    when = 0.0
    for awaited in spec.roles[role].waits_for:
        if state.nodes.count(awaited, JOINED) < spec.roles[awaited].least:
            return math.inf
        if state.nodes.count(awaited, (NodePhase.REQUESTED,)):
            when = max(state.joined_at, state.awake_since) + spec.patience.join_window_s
    return when


def next_admission(state: State, spec: JobSpec) -> float | None:
    """When `missing_nodes` will return more nodes although nothing happens; None: never."""
    if all(not role.waits_for for role in spec.roles.values()) or state.phase is JobPhase.ENDED:
        return None
    times = [admission_time(state, spec, role) for role, _ in _shortages(state, spec)]
    return min((when for when in times if 0 < when < math.inf), default=None)


def _shortages(state: State, spec: JobSpec) -> Iterator[tuple[str, int]]:
    for role in spec.roles:
        lack = _target_size(state, spec, role) - state.nodes.count(role, LIVE)
        if lack > 0:
            yield role, lack


def _target_size(state: State, spec: JobSpec, role: str) -> int:
    """The desired size and its spares, without replicas that were given up."""
    places = _places(state, spec, role)
    given_up = sum(place[0] == role and place[1] < places for place in state.given_up)
    return min(desired_size(state, spec, role) + spec.roles[role].spare_nodes, places - given_up)


def _places(state: State, spec: JobSpec, role: str) -> int:
    """The number of the role's replicas."""
    return max(desired_size(state, spec, role), spec.roles[role].nodes) + spec.roles[role].spare_nodes


class _Allocator:
    """Finds free indices and hosts for all nodes that are requested together.

    A node's name is made of its role, index and launch. So only nodes that are gone or leaving are indexed: a replica
    is free if the last of these has no successor.
    """

    def __init__(self, state: State, spec: JobSpec) -> None:
        self._state = state
        self._spec = spec
        self._last: dict[tuple[str, int], NodeState] = {}
        self._used = set(state.avoided) | set(spec.avoid_hosts)
        self._number = 0
        gone_phases = ((LIVE, True), (_GONE_PHASES, False), (_GONE_PHASES, True))
        for role in spec.roles:
            for phases, leaving in gone_phases:
                for node in state.nodes.select(role, phases, leaving):
                    latest = self._last.get(node.replica)
                    if latest is None or node.launch > latest.launch:
                        self._last[node.replica] = node
        if spec.hosts:
            self._used |= {node.host for node in state.nodes.values() if node.phase in LIVE}

    def free_replicas(self, role: str, lack: int) -> list[tuple[str, int]]:
        """The lowest `lack` replicas that are free and not given up."""
        open_ = (
            place
            for place in ((role, index) for index in range(_places(self._state, self._spec, role)))
            if place not in self._state.given_up and _node_name(place, self._last.get(place)) not in self._state.nodes
        )
        return list(islice(open_, lack))

    def allocate(self, role: str, index: int, now: float) -> NodeRequested:
        previous = self._last.get((role, index))
        launch, replaces, memory = 0, "", 0
        if previous:
            launch, memory = previous.launch + 1, previous.memory_bytes
            because = _leave_reason(previous)
            if because not in (Reason.SCALED, None):
                replaces = previous.name
            previous_memory = memory_of(previous, self._spec.roles[role])
            if because is Reason.OOM and previous_memory:
                memory = more_memory(previous_memory, self._spec.oom)
        host = self._choose_host(previous)
        self._used.add(host)
        return NodeRequested(
            time=now, node=_node_name((role, index), previous), role=role, index=index, launch=launch, host=host,
            replaces=replaces, memory_bytes=memory,
        )  # fmt: skip

    def _choose_host(self, previous: NodeState | None) -> str:
        """The previous launch's host if it may be used again, else the first free host."""
        if not self._spec.hosts:
            return ""
        if previous and previous.host and previous.host not in self._used and not _must_move(previous):
            return previous.host
        while f"{self._spec.hosts}{self._number}" in self._used:
            self._number += 1
        hosts = (f"{self._spec.hosts}{number}" for number in count(self._number))
        return next(host for host in hosts if host not in self._used and (not previous or host != previous.host))


def _node_name(place: tuple[str, int], previous: NodeState | None) -> str:
    """The name of the node that follows `previous` as this replica."""
    return f"{place[0]}-{place[1]}-{previous.launch + 1 if previous else 0}"


def _leave_reason(node: NodeState) -> Reason | None:
    return node.left_because or node.leaving_because


def _must_move(previous: NodeState) -> bool:
    because = _leave_reason(previous)
    is_live = previous.phase in LIVE
    return is_live or (because is not None and DECISIONS[because] not in (Decision.RELAUNCH, Decision.MEMBERSHIP))
