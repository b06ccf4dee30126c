"""Signs of life, which are not journaled: when each node was last heard from, its iteration, whether it stands still.

A new master knows the round from the journal and learns the rest from heartbeats: until a heartbeat says otherwise, no
node has taken its seat, made progress or stands still, and all timeouts restart. It is not taken for a sign of life.

Deadlines are in a heap and are re-evaluated only when they expire, so a heartbeat costs as much among 10,000 nodes as
among two.
"""

import heapq
from collections.abc import Iterator

from everstep.runtime.job.nodes import JOINED, NodePhase, NodeState
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.slow_nodes import SlowNodes
from everstep.runtime.job.spec import START_TIMEOUT_S, Hang, JobSpec
from everstep.runtime.job.state import State, round_number
from everstep.runtime.job.suspicion import REACH_S, Accusations
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.watch.board_fields import EVALUATION, EXPORT, FETCH, FLUSH, MEMORY, SAVE
from everstep.runtime.watch.hang_culprit import Standing

LONG_PHASES = frozenset({EVALUATION, "eval", "validation", SAVE, EXPORT, FETCH, MEMORY, FLUSH})
"""Phases that may take long without a sign of progress, as scripts name them, or as they are seen from outside."""
PACES = 10
"""This many median iterations may pass before a node counts as standing still, if that is more than the time limit."""


_MAY_BE_SILENT = (NodePhase.RUNNING, NodePhase.REJOINING)
"""Phases of members that a round trains with or waits for."""
_MAY_ASK = (*_MAY_BE_SILENT, NodePhase.WAITING)


class Liveness:
    """The signs of life of one job's nodes. Lost and released nodes drop out by themselves."""

    def __init__(self, spec: JobSpec, state: State, now: float) -> None:
        self._spec = spec
        self._heartbeat_times: dict[str, float] = {}
        self._unheard: set[str] = set()
        """Nodes that this master knows only from the journal."""
        self._due: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        self._iterations: dict[str, int] = {}
        self._beats: dict[str, tuple[int, int]] = {}
        """(Life, number) of each node's newest heartbeat."""
        self._seated: set[str] = set()
        """Nodes that have reported to be in the running round."""
        self._still: set[str] = set()
        """Nodes that stand still after progress."""
        self._limits: dict[str, float] = {}
        """After how many seconds each node counts as standing still, as of its last heartbeat."""
        self._unmoved: set[str] = set()
        """Nodes without progress since their workers were started. Counts only if the role has a beacon."""
        self._with_beacon: set[str] = set()
        """Roles whose script has a beacon."""
        self._surviving: set[str] = set()
        """Roles whose workers survive rounds."""
        self._moving: set[str] = set()
        self._moved = False
        """Whether any member has made progress in this round."""
        self._working: set[str] = set()
        """Nodes whose script shows no beacon of its own, computes, and waits for nobody."""
        self._dumped: dict[str, tuple[Standing, ...]] = {}
        """What the nodes that have written their stacks say about their ranks."""
        self.accusations = Accusations()
        """Who says of whom that it does not answer."""
        self.slow_nodes = SlowNodes()
        """For whom the others wait."""
        self._blocked: set[str] = set()
        """Nodes without progress since their workers began, which have used no CPU or disk for `hang.timeout_s`."""
        self._awaiting: set[str] = set()
        """Nodes with a worker that waits for other ranks."""
        self._start = state.round.restore.iteration if state.round and state.round.restore else 0
        self._trained = 0
        self.restart_s = 0.0
        """Seconds that the last round took to its first iteration; 0: not known to this master."""
        self.rearm(state, now)
        self._unheard = set(state.nodes)
        self.accusations = Accusations(now + REACH_S)

    def rearm(self, state: State, now: float) -> None:
        """Restart all timeouts: the master could not hear its nodes for a while."""
        self._heartbeat_times = dict.fromkeys(state.nodes, now)
        self._unheard.clear()  # What they have sent meanwhile may be handled in any order.
        self._due, self._queued = [], {}
        for node in state.nodes.values():
            self._queue_deadline(node)
        self._forget_movements()
        self.accusations = Accusations()
        self._started_at = now

    def _forget_movements(self) -> None:
        for names in (self._still, self._unmoved, self._moving, self._working, self._blocked, self._awaiting):
            names.clear()
        self._limits.clear()
        self.slow_nodes.clear()

    def is_late(self, beat: Heartbeat) -> bool:
        """Whether a newer heartbeat of this agent, or one of a later agent of its node, has arrived before."""
        newest = self._beats.get(beat.node, (0, 0))
        self._beats[beat.node] = max(newest, (beat.life, beat.number))
        return (beat.life, beat.number) < newest

    def mark_alive(self, state: State, name: str, now: float) -> None:
        """Restart the node's timeout: it gave a sign of life or was just requested."""
        self._heartbeat_times[name] = now
        self._unheard.discard(name)
        self._queue_deadline(state.nodes[name])

    def record_heartbeat(self, state: State, beat: Heartbeat) -> None:
        """Take in a node's progress in the running round."""
        node = state.nodes[beat.node]
        if state.round is None or beat.round != state.round.number or node.round != beat.round:
            return
        before = self._trained
        self.record_iteration(beat.node, beat.iteration)
        if self._trained > before == 0:
            self.restart_s = self._heartbeat_times[beat.node] - self._started_at
        self._seated.add(beat.node)
        self._moved |= beat.moved
        if beat.has_beacon:
            self._with_beacon.add(node.role)
        if beat.survives:
            self._surviving.add(node.role)
        self._limits[beat.node] = hang_limit_s(beat, self._spec.hang)
        still = stands_still(beat, self._spec)
        for names, within in (
            (self._still, still and beat.moved),
            (self._unmoved, still and not beat.moved),
            (self._moving, beat.moved and not still),
            (self._working, beat.is_working),
            (self._blocked, is_blocked(beat, self._spec)),
            (self._awaiting, beat.awaits),
        ):
            (names.add if within else names.discard)(beat.node)
        if beat.paces:
            self.slow_nodes.record(state, node, beat.paces)

    def record_silent(self, state: State, beat: Heartbeat, now: float) -> None:
        """Note which neighbours do not answer the node."""
        silent = beat.silent if beat.round == round_number(state) else ()
        self.accusations.record(beat.node, silent, now, beat.silent_s)

    def suspects(self, state: State, now: float) -> dict[str, tuple[str, ...]]:
        """Members of the round that answer nobody -> who asked them; empty until all have had the time to say."""
        number = round_number(state)
        members = {name for name in self.accusations.names() if name in state.nodes}
        members = {name for name in members if state.nodes[name].round == number}
        accused_nodes = {name for name in members if state.nodes[name].phase in _MAY_BE_SILENT}
        askers = {name for name in members if state.nodes[name].phase in _MAY_ASK}
        unheard = {name for name in self._unheard if name in state.nodes and state.nodes[name].phase in _MAY_ASK}
        running = state.nodes.total(_MAY_ASK)
        return self.accusations.suspects(askers, accused_nodes, self._heartbeat_times, unheard, running, now)

    def record_iteration(self, name: str, iteration: int) -> None:
        """Note that a member of the running round has reached this iteration."""
        before = self._iterations.get(name, 0)
        if iteration > before:
            self._iterations[name] = iteration
            self._trained += before <= self._start < iteration

    def begin_round(self, start: int, now: float) -> None:
        """Begin a round at iteration `start`; its members are told to start workers."""
        self._iterations.clear()
        self._start, self._trained, self._started_at = start, 0, now
        self._seated.clear()
        self._moved = False
        self._forget_movements()
        self.accusations = Accusations()
        self._dumped.clear()

    def newest_iteration(self) -> int:
        """The newest iteration that any member of the running round has reported."""
        return max(self._iterations.values(), default=0)

    def all_train(self, state: State) -> bool:
        """Whether every member has finished an iteration in this round."""
        return self._trained >= sum(state.members.values())

    def survives(self, role: str) -> bool:
        """Whether workers of this role are known to survive rounds."""
        return role in self._surviving

    def all_still(self, state: State, now: float) -> bool:
        """Whether the job hangs: every member that still trains has reported no progress for `hang.timeout_s`, or has
        not reported to be in the round for `hang.start_timeout_s`; before the first progress, also if all workers have
        used neither CPU nor disk for `hang.timeout_s` and one waits for other ranks.

        Not if all of them compute and none waits for another: that may be an export, or a long evaluation, of a script
        that does not say so."""
        if self._awaiting and self.all_blocked(state):
            return True
        still = self._still
        if self._unmoved:
            still = still | {name for name in self._unmoved if self._must_move(state.nodes[name].role)}
        late = now >= self._started_at + self._spec.hang.start_timeout_s
        if late and len(self._seated) < sum(state.members.values()):
            still = still | {node.name for node in _training_nodes(state) if node.name not in self._seated}
        return self._includes_all_running(still, state) and not self._includes_all_running(self._working, state)

    def still_s(self, state: State) -> float:
        """For how long at least all members that still train have stood still, if the job hangs."""
        if self.all_blocked(state):
            return self._spec.hang.timeout_s
        default_s = self._spec.hang.start_timeout_s
        return min((self._limits.get(node.name, default_s) for node in _training_nodes(state)), default=default_s)

    def all_blocked(self, state: State) -> bool:
        """Whether no worker has used CPU or disk for `hang.timeout_s`, before the first progress."""
        return self._includes_all_running(self._blocked, state)

    def _must_move(self, role: str) -> bool:
        """Whether its script will show progress: it has, or the user has set a limit for it."""
        return role in self._with_beacon or self._spec.hang.start_timeout_s != START_TIMEOUT_S

    def start_deadline(self, now: float) -> float | None:
        """When members that have not reported to be in the round will count as standing still."""
        deadline = self._started_at + self._spec.hang.start_timeout_s
        return deadline if deadline > now else None

    @property
    def any_moved(self) -> bool:
        """Whether any member has reported progress in this round."""
        return self._moved

    def any_moving(self, state: State) -> bool:
        """Whether a member that still trains reports progress."""
        return any(state.nodes[name].phase is NodePhase.RUNNING for name in self._moving)

    def begin_dump(self) -> None:
        """Begin to wait for stack dumps."""
        self._dumped.clear()

    def record_dump(self, name: str, standings: tuple[Standing, ...]) -> None:
        """Note that this node has written its stacks, and where its ranks stand."""
        self._dumped[name] = standings

    @property
    def standings(self) -> list[Standing]:
        """Where the ranks stand whose stacks are written."""
        return [standing for standings in self._dumped.values() for standing in standings]

    def all_dumped(self, state: State) -> bool:
        """Whether all members that still train have written their stacks."""
        return self._includes_all_running(set(self._dumped), state)

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
        """Remove and return the nodes whose timeout has expired, with the reason of each."""
        expired = []
        while self._due and self._due[0][0] <= now:
            limit = self._pop_deadline(state)
            if limit is not None and now >= limit[0]:
                expired.append(limit[1:])
        return expired

    def next_deadline(self, state: State) -> float | None:
        """When the first timeout expires if no node is heard from."""
        while self._due:
            when, name = self._due[0]
            limit = self._deadline(state.nodes[name])
            if limit and limit[0] == when == self._queued.get(name):
                return when
            self._pop_deadline(state)
        return None

    def _pop_deadline(self, state: State) -> tuple[float, str, Reason] | None:
        """Pop the first entry, and requeue its node if its deadline has moved. Returns (deadline, node, reason), None
        for an outdated entry."""
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
        """Queue the node's deadline unless it is queued for an earlier time."""
        limit = self._deadline(node)
        if limit and limit[0] < self._queued.get(node.name, float("inf")):
            heapq.heappush(self._due, (limit[0], node.name))
            self._queued[node.name] = limit[0]

    def _deadline(self, node: NodeState) -> tuple[float, Reason] | None:
        """The node's deadline, and the reason for losing it after that; None if it has no timeout."""
        patience, last_heartbeat = self._spec.patience, self._heartbeat_times.get(node.name, 0.0)
        if node.phase in JOINED:
            return last_heartbeat + patience.silence_s, Reason.NO_HEARTBEAT
        if node.phase is not NodePhase.REQUESTED:
            return None
        role = self._spec.roles[node.role]
        wait = max(patience.join_timeout_s, role.restart_timeout_s if node.replaces else 0.0)
        if node.replaces and role.restart_time_limit_s:
            wait = role.restart_time_limit_s
        return max(node.requested_at, last_heartbeat) + wait, Reason.NEVER_JOINED


def stands_still(beat: Heartbeat, spec: JobSpec) -> bool:
    """Whether no worker of the node has made progress for so long that the node may hang."""
    return beat.still_s >= hang_limit_s(beat, spec.hang)


def is_blocked(beat: Heartbeat, spec: JobSpec) -> bool:
    """Whether the node's workers, before their first progress, have used neither CPU nor disk for `hang.timeout_s`."""
    return not beat.moved and beat.blocked_s >= spec.hang.timeout_s


def hang_limit_s(beat: Heartbeat, hang: Hang) -> float:
    """Seconds without progress from which a node counts as standing still.

    A phase may have its own limit; otherwise long phases get that of a start, and iterations ten times their median.
    """
    if not beat.moved:
        return hang.start_timeout_s
    if beat.phase in hang.phases:
        return hang.phases[beat.phase]
    if beat.phase in LONG_PHASES:
        return max(hang.timeout_s, hang.start_timeout_s)
    return max(hang.timeout_s, PACES * beat.pace_s)


def _training_nodes(state: State) -> Iterator[NodeState]:
    for role in state.members:
        for leaving in (False, True):
            yield from state.nodes.select(role, (NodePhase.RUNNING,), leaving)
