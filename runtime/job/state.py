"""The state of a job, as its journal tells it; `fold` makes it of the records.

States are immutable. A master journals records, and shows the state they lead to once they are durable.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from everstep.runtime.job.checkpoints import Checkpoints, Doubt
from everstep.runtime.job.conditions import Condition
from everstep.runtime.job.data_queues import DataQueue
from everstep.runtime.job.nodes import NodePhase, NodeState, UnlistedTransition
from everstep.runtime.job.phases import JobPhase
from everstep.runtime.job.reasons import Decision, Reason
from everstep.runtime.job.records import DesiredChanged, FaultJudged, HangSeen, JobEnded, SlowSeen, WorkerFaulted
from everstep.runtime.job.roster import Roster
from everstep.runtime.protocol.holdings import Refusal
from everstep.runtime.protocol.rounds import Round

RELAUNCHES = (Decision.RELAUNCH, Decision.RELAUNCH_ELSEWHERE, Decision.EXCLUDE)
"""Decisions after which another node replaces the faulty one."""


class State(msgspec.Struct, frozen=True):
    """All that the journal says of a job; `State()` before the first record."""

    time: float = 0.0
    epoch: int = 0
    address: str = ""
    awake_since: float = 0.0
    """Since when the current master has heard from its nodes without a gap: timeouts do not start earlier."""
    phase: JobPhase = JobPhase.FORMING
    since: float = 0.0
    """Since when the job has had no round."""
    began_at: float = 0.0
    """When the first round was formed; after the job was taken up again, the first one since."""
    changed_at: float = 0.0
    """When a round with other nodes than the one before it was formed."""
    nodes: Roster = Roster()
    requested_at: float = 0.0
    """When a node was last requested."""
    joined_at: float = 0.0
    """When a node last joined."""
    fastest_start_s: float = 0.0
    """Seconds from the request of a node to its first join, of the fastest so far; 0: none is known."""
    relaunches: dict[tuple[str, int], int] = {}
    """Replacements after faults per (role, index)."""
    restarts: dict[str, int] = {}
    """Restarts after faults per role, in place or by another node."""
    given_up: dict[tuple[str, int], FaultJudged] = {}
    """(role, index) of replicas that get no more nodes, and why."""
    asked: dict[str, DesiredChanged] = {}
    """The newest request per role for a number of nodes."""
    sizes: dict[str, int] = {}
    """Desired nodes per role, where they differ from the spec: as requested, or fewer if some did not join in time."""
    avoided: frozenset[str] = frozenset()
    round: Round | None = None
    """The running or the last round."""
    members: dict[str, int] = {}
    """Its nodes per role."""
    workers: dict[str, int] = {}
    """Its workers per role."""
    finished: dict[str, int] = {}
    """Members per role that finished this round, including those lost since."""
    hang: HangSeen | None = None
    """Set while all ranks of the running round stand still."""
    hang_times: dict[int, float] = {}
    """When the newest hang was explained for which that rank kept the others waiting; -1: no rank in particular."""
    slow: tuple[SlowSeen, ...] = ()
    """The slow nodes that were seen in the running round."""
    slow_replaced: frozenset[tuple[str, int]] = frozenset()
    """(role, index) of replicas whose slow node was replaced. If the next one is slow, too, no other machine helps."""
    worlds: dict[int, int] = {}
    """World size of the newest rounds."""
    blamed: dict[int, WorkerFaulted] = {}
    """The first error of a worker in each round."""
    excused: frozenset[int] = frozenset()
    """Rounds with a fault other than an error: errors in them count as its echo and are not charged."""
    broken: Reason | None = None
    """Why the last round ended, if a fault or a change ended it."""
    check_round: int = 0
    """The last round whose end asked for a test of its nodes."""
    checks_since: float = 0.0
    """When it asked."""
    moved_for: tuple[WorkerFaulted, ...] = ()
    """The errors that moved a node to another machine, in order."""
    judged: int = 0
    """The last round of which a fault was judged."""
    stalled: int = 0
    """Consecutive rounds that ended by a fault without a new iteration."""
    reached: int = 0
    """The newest iteration at which a round was broken since the job began, was taken up again, or stepped back."""
    iteration: int = 0
    """The newest iteration in the journal."""
    checkpoints: Checkpoints = {}
    queues: dict[str, DataQueue] = {}
    """Queues of data shards, by name."""
    forgotten: tuple[int, int] = (0, 0)
    """The newest (round, iteration) that was deleted from the store: reports of shards up to it are too late."""
    certified: tuple[tuple[int, int], ...] = ()
    """The newest (round, iteration) that are certified, sorted."""
    rejections: dict[int, int] = {}
    """By iteration: how often its state was rejected although no node was to blame."""
    skipped: tuple[int, ...] = ()
    """Iterations that every later round skips, sorted."""
    doubted: tuple[Doubt, ...] = ()
    """Restored states after which the loss was not finite."""
    refused: tuple[Refusal, ...] = ()
    """The newest sources that are not restored any more."""
    rounds_before: int = 0
    """The highest round found in the store that the journal did not know."""
    ended: JobEnded | None = None
    reason: str = "the job begins"
    """Why the job is in this state, in one line."""
    conditions: tuple[Condition, ...] = ()


def require_node(state: State, name: str) -> NodeState:
    """The node of this name. Raises UnlistedTransition."""
    node = state.nodes.get(name)
    if node is None:
        raise UnlistedTransition(f"{name} is not a node of this job")
    return node


def with_nodes(state: State, *nodes: NodeState, **fields: Any) -> State:
    """The state with these nodes added or replaced, and with these fields."""
    return replace(state, nodes=state.nodes.with_nodes(nodes), **fields)


def member_names(round_: Round | None) -> frozenset[str]:
    """Names of a round's nodes."""
    return frozenset(m.node for members in round_.members.values() for m in members) if round_ else frozenset()


def round_number(state: State) -> int:
    """The number of the running or last round; 0: none yet."""
    return state.round.number if state.round else 0


def next_round(state: State) -> int:
    """The number of the next round: higher than that of any round with objects in the store."""
    return max(round_number(state), state.rounds_before) + 1


def restore_point(state: State) -> tuple[int, int]:
    """The (round, iteration) that the running or last round restored; zeros: nothing."""
    restore = state.round.restore if state.round else None
    return (restore.round, restore.iteration) if restore else (0, 0)


def fastest_start(state: State, node: NodeState, now: float) -> float:
    """Seconds that the fastest node so far took to start, if this one joins now; 0: none is known."""
    if node.phase is not NodePhase.REQUESTED:
        return state.fastest_start_s
    took = now - node.requested_at
    return min(state.fastest_start_s, took) if state.fastest_start_s else took
