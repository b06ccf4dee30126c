"""Signs of life: what needs no journal. When each node was last heard of, how far it is, whether it stands still.

A later master begins with what the journal says of the round, and hears the rest anew: nobody has trained, stands still
or has taken its seat for it until a heartbeat says so, and no time has passed.

Deadlines lie in a heap and are looked at again only when they come, so that a heartbeat costs no more among 10,000
nodes than among two.
"""

import heapq
from collections.abc import Iterator

from everstep.runtime.job.nodes import JOINED, NodePhase, NodeState
from everstep.runtime.job.records import Reason
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.state import State
from everstep.runtime.protocol.messages import Heartbeat


class Liveness:
    """Kept by one brain. A node that is not asked about any more (lost, released) is forgotten by itself."""

    def __init__(self, spec: JobSpec, state: State, now: float) -> None:
        self._spec = spec
        self._heard: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        self._iterations: dict[str, int] = {}
        self._beats: dict[str, tuple[int, int]] = {}
        """(Life, number) of each node's newest heartbeat."""
        self._seated: set[str] = set()
        """Who has said that it is in the running round."""
        self._still: set[str] = set()
        """Who stands still after a movement,"""
        self._unmoved: set[str] = set()
        """or has not moved since its workers were told to start; that says something where its role has a beacon."""
        self._with_beacon: set[str] = set()
        """Roles."""
        self._moving: set[str] = set()
        self._moved = False
        """Has any member moved in this round?"""
        self._dumped: set[str] = set()
        self._start = state.round.restore.iteration if state.round and state.round.restore else 0
        self._beyond = 0
        self.rearm(state, now)

    def rearm(self, state: State, now: float) -> None:
        """Nobody could be heard for a while: every node has all its time again."""
        self._heard = dict.fromkeys(state.nodes, now)
        self._due, self._queued = [], {}
        for node in state.nodes.values():
            self._queue_deadline(node)
        self._forget_movements()
        self._told_at = now

    def _forget_movements(self) -> None:
        for names in (self._still, self._unmoved, self._moving):
            names.clear()

    def is_late(self, beat: Heartbeat) -> bool:
        """Was a heartbeat heard that this agent, or a later one of its node, sent after it?"""
        newest = self._beats.get(beat.node, (0, 0))
        self._beats[beat.node] = max(newest, (beat.life, beat.number))
        return (beat.life, beat.number) < newest

    def mark_alive(self, state: State, name: str, now: float) -> None:
        """A sign of life of a node of the job, or that it exists now."""
        self._heard[name] = now
        self._queue_deadline(state.nodes[name])

    def record_heartbeat(self, state: State, beat: Heartbeat) -> None:
        """How far the node is in the running round, and whether its workers move."""
        node = state.nodes[beat.node]
        if state.round is None or beat.round != state.round.number or node.round != beat.round:
            return
        self.record_iteration(beat.node, beat.iteration)
        self._seated.add(beat.node)
        self._moved |= beat.moved
        if beat.has_beacon:
            self._with_beacon.add(node.role)
        still = stands_still(beat, self._spec)
        for names, within in (
            (self._still, still and beat.moved),
            (self._unmoved, still and not beat.moved),
            (self._moving, beat.moved and not still),
        ):
            (names.add if within else names.discard)(beat.node)

    def record_iteration(self, name: str, iteration: int) -> None:
        """A member of the running round has come to this iteration."""
        before = self._iterations.get(name, 0)
        if iteration > before:
            self._iterations[name] = iteration
            self._beyond += before <= self._start < iteration

    def begin_round(self, start: int, now: float) -> None:
        """A round begins at this iteration; its members are told to start."""
        self._iterations.clear()
        self._start, self._beyond, self._told_at = start, 0, now
        self._seated.clear()
        self._moved = False
        self._forget_movements()
        self._dumped.clear()

    def newest_iteration(self) -> int:
        """The newest that any member of the running round has told of."""
        return max(self._iterations.values(), default=0)

    def all_train(self, state: State) -> bool:
        """Has every member of the round finished an iteration of it?"""
        return self._beyond >= sum(state.members.values())

    def all_still(self, state: State, now: float) -> bool:
        """Do all members that still train say that nothing has moved for the hang's timeout, or have not said for the
        longer one of a start that they are in the round at all?"""
        still = self._still
        if self._unmoved:
            still = still | {name for name in self._unmoved if state.nodes[name].role in self._with_beacon}
        late = now >= self._told_at + self._spec.hang.start_timeout_s
        if late and len(self._seated) < sum(state.members.values()):
            still = still | {node.name for node in _training_nodes(state) if node.name not in self._seated}
        return self._includes_all_running(still, state)

    def start_deadline(self, now: float) -> float | None:
        """When a member that has not come into the round yet counts as standing still."""
        deadline = self._told_at + self._spec.hang.start_timeout_s
        return deadline if deadline > now else None

    @property
    def any_moved(self) -> bool:
        """Has any member said that it moved in this round?"""
        return self._moved

    def any_moving(self, state: State) -> bool:
        """Does a member that still trains say that it moves?"""
        return any(state.nodes[name].phase is NodePhase.RUNNING for name in self._moving)

    def begin_dump(self) -> None:
        """Stacks are asked for from now on."""
        self._dumped.clear()

    def record_dump(self, name: str) -> None:
        """This node has written its stacks."""
        self._dumped.add(name)

    def all_dumped(self, state: State) -> bool:
        """Have all members that still train written their stacks?"""
        return self._includes_all_running(self._dumped, state)

    def _includes_all_running(self, names: set[str], state: State) -> bool:
        running = sum(
            state.nodes.count(role, (NodePhase.RUNNING,), leaving)
            for role in state.members
            for leaving in (False, True)
        )
        if not running or len(names) < running:
            return False
        return sum(state.nodes[name].phase is NodePhase.RUNNING for name in names) >= running

    def pop_expired(self, state: State, now: float) -> list[tuple[str, Reason]]:
        """The nodes whose time is over."""
        found = []
        while self._due and self._due[0][0] <= now:
            limit = self._pop_deadline(state)
            if limit is not None and now >= limit[0]:
                found.append(limit[1:])
        return found

    def next_deadline(self, state: State) -> float | None:
        """When the first node's time may be over, if nothing is heard of it."""
        while self._due:
            when, name = self._due[0]
            limit = self._deadline(state.nodes[name])
            if limit and limit[0] == when == self._queued.get(name):
                return when
            self._pop_deadline(state)
        return None

    def _pop_deadline(self, state: State) -> tuple[float, str, Reason] | None:
        """Take the first entry; queue its node again if it has more time by now. What is true of it, if anything."""
        when, name = heapq.heappop(self._due)
        if self._queued.get(name) != when:
            return None
        del self._queued[name]
        limit = self._deadline(state.nodes[name])
        if limit is None:
            return None
        if limit[0] > when:
            self._queue_deadline(state.nodes[name])
        return limit[0], name, limit[1]

    def _queue_deadline(self, node: NodeState) -> None:
        """Queue the node unless it is queued for an earlier time."""
        limit = self._deadline(node)
        if limit and limit[0] < self._queued.get(node.name, float("inf")):
            heapq.heappush(self._due, (limit[0], node.name))
            self._queued[node.name] = limit[0]

    def _deadline(self, node: NodeState) -> tuple[float, Reason] | None:
        """Until when this node need not be heard of, and what it is then."""
        patience, heard = self._spec.patience, self._heard.get(node.name, 0.0)
        if node.phase in JOINED:
            return heard + patience.silence_s, Reason.NO_HEARTBEAT
        if node.phase is not NodePhase.REQUESTED:
            return None
        role = self._spec.roles[node.role]
        wait = max(patience.join_timeout_s, role.restart_timeout_s if node.replaces else 0.0)
        if node.replaces and role.restart_time_limit_s:
            wait = role.restart_time_limit_s
        return max(node.requested_at, heard) + wait, Reason.NEVER_JOINED


def stands_still(beat: Heartbeat, spec: JobSpec) -> bool:
    """Has no worker of the node moved for so long that it may hang?"""
    return beat.still_s >= (spec.hang.timeout_s if beat.moved else spec.hang.start_timeout_s)


def _training_nodes(state: State) -> Iterator[NodeState]:
    for role in state.members:
        for leaving in (False, True):
            yield from state.nodes.select(role, (NodePhase.RUNNING,), leaving)
