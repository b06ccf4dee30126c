"""The state of a job: the fold of its records. Both tables of transitions stand here; an unlisted pair raises.

States are immutable: a master journals records and, once they are durable, lets others see the state they lead to.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from runtime.job.messages import Action, Holding, Round
from runtime.job.records import (
    Committed,
    DesiredChanged,
    JobEnded,
    JobReopened,
    MasterClaimed,
    NodeFinished,
    NodeJoined,
    NodeLost,
    NodeReleased,
    NodeRequested,
    Reason,
    Record,
    RoundBroken,
    RoundFormed,
    ShardPersisted,
    WorkerFaulted,
)

KEPT_CHECKPOINTS = 16
"""Persisted (round, iteration)s that the state remembers, newest first in line."""


class JobPhase(StrEnum):
    """What a job is doing."""

    FORMING = "forming"
    """No round runs."""
    RUNNING = "running"
    ENDED = "ended"


class NodePhase(StrEnum):
    """What a node is doing, as far as the master was told."""

    ABSENT = "absent"
    REQUESTED = "requested"
    """Asked for; has not joined yet."""
    WAITING = "waiting"
    """Joined; waits for a round."""
    RUNNING = "running"
    FINISHED = "finished"
    REJOINING = "rejoining"
    """Its round is broken; it is told to join again."""
    RELEASED = "released"
    """Told to leave."""
    LOST = "lost"


class UnlistedTransition(ValueError):  # noqa: N818 (a name that reads well in a traceback)
    """A record that the tables do not allow in this state: a broken journal, or a fault of the brain."""


F, R, E = JobPhase.FORMING, JobPhase.RUNNING, JobPhase.ENDED

JOB: dict[tuple[JobPhase, type], JobPhase] = {
    (F, RoundFormed): R,
    (R, RoundBroken): F,
    (F, JobEnded): E,
    (R, JobEnded): E,
    (E, JobReopened): F,
    **{
        (phase, kind): phase
        for phase in (F, R)
        for kind in (
            MasterClaimed, NodeRequested, NodeJoined, NodeReleased, NodeLost, WorkerFaulted, ShardPersisted, Committed,
            DesiredChanged,
        )
    },
    (R, NodeFinished): R,
    **{(E, kind): E for kind in (MasterClaimed, NodeLost, ShardPersisted, Committed)},
}  # fmt: skip

P = NodePhase

NODE: dict[tuple[NodePhase, type], NodePhase] = {
    (P.ABSENT, NodeRequested): P.REQUESTED,
    (P.REQUESTED, NodeJoined): P.WAITING,
    (P.WAITING, NodeJoined): P.WAITING,
    (P.REJOINING, NodeJoined): P.WAITING,
    (P.WAITING, RoundFormed): P.RUNNING,
    (P.RUNNING, NodeFinished): P.FINISHED,
    **{(phase, WorkerFaulted): phase for phase in (P.RUNNING, P.REJOINING, P.WAITING)},
    (P.RUNNING, RoundBroken): P.REJOINING,
    (P.FINISHED, RoundBroken): P.REJOINING,
    **{
        (phase, kind): to
        for phase in (P.REQUESTED, P.WAITING, P.RUNNING, P.FINISHED, P.REJOINING)
        for kind, to in ((NodeReleased, P.RELEASED), (NodeLost, P.LOST), (JobEnded, P.RELEASED), (JobReopened, P.LOST))
    },
    (P.RELEASED, NodeLost): P.LOST,
    (P.RELEASED, JobReopened): P.LOST,
}

LIVE = frozenset({P.REQUESTED, P.WAITING, P.RUNNING, P.FINISHED, P.REJOINING})
"""Phases of nodes that the job counts on."""


class NodeState(msgspec.Struct, frozen=True):
    """One node of the job, also when it is lost."""

    name: str
    role: str
    index: int
    launch: int
    host: str
    requested_at: float
    phase: NodePhase = P.ABSENT
    joined_at: float = 0.0
    slots: int = 0
    address: str = ""
    master_port: int = 0
    holdings: tuple[Holding, ...] = ()
    after_round: int = 0
    left_at: float = 0.0
    left_because: Reason | None = None
    directive: int = 0
    """Number of the directive; rises whenever `action` changes."""
    action: Action = Action.CONTINUE
    action_reason: str = ""
    action_round: int = 0


class Checkpoint(msgspec.Struct, frozen=True):
    """What of a (round, iteration) is in the store."""

    shards: tuple[Holding, ...] = ()
    manifest: str = ""
    """Key of the manifest; empty until committed."""


class State(msgspec.Struct, frozen=True):
    """All that a master knows; `State()` before the first record."""

    time: float = 0.0
    epoch: int = 0
    address: str = ""
    claimed_at: float = 0.0
    phase: JobPhase = F
    since: float = 0.0
    """When the job began to be without a round."""
    changed_at: float = 0.0
    """When a round with other nodes than the one before it was formed."""
    nodes: dict[str, NodeState] = {}
    relaunches: dict[tuple[str, int], int] = {}
    """Replacements per (role, index)."""
    asked_at: float = 0.0
    """When somebody last asked for another size."""
    sizes: dict[str, int] = {}
    """Nodes asked for per role, where not those of the spec."""
    avoided: frozenset[str] = frozenset()
    round: Round | None = None
    """The running or the last round."""
    finished: frozenset[str] = frozenset()
    """Members that ended this round well, also when they are lost since."""
    worlds: dict[int, int] = {}
    """World size of each round."""
    blamed: dict[int, WorkerFaulted] = {}
    """The first error of a worker in each round."""
    excused: frozenset[int] = frozenset()
    """Rounds in which something else than an error happened: errors in them are its echo."""
    stalled: int = 0
    """Rounds in a row that ended without a new iteration."""
    iteration: int = 0
    """The newest iteration that the journal speaks of."""
    checkpoints: dict[tuple[int, int], Checkpoint] = {}
    ended: JobEnded | None = None
    reason: str = "the job begins"
    """Why the job is as it is, in one line."""


_ACTIONS = {P.REJOINING: Action.REJOIN, P.RELEASED: Action.LEAVE, P.LOST: Action.LEAVE}


def apply(state: State, record: Record) -> State:
    """The state after `record`. Raises UnlistedTransition where the tables do not list it."""
    kind = type(record)
    phase = JOB.get((state.phase, kind))
    if phase is None:
        raise UnlistedTransition(f"{kind.__name__} while the job is {state.phase}")
    if record.time < state.time:
        raise UnlistedTransition(f"{kind.__name__} at {record.time}, before {state.time}")
    return _FOLDS[kind](replace(state, phase=phase, time=record.time), record)


def fold(records: Iterable[Record], state: State | None = None) -> State:
    """The state that these records lead to."""
    return reduce(apply, records, State() if state is None else state)


def world_size(round_: Round) -> int:
    """Workers of a round."""
    return sum(member.slots for members in round_.members.values() for member in members)


def member_names(round_: Round | None) -> frozenset[str]:
    """Names of a round's nodes."""
    return frozenset(m.node for members in round_.members.values() for m in members) if round_ else frozenset()


def _moved(node: NodeState, record: Record, reason: str = "", round_: int = 0, **fields: Any) -> NodeState:
    phase = NODE.get((node.phase, type(record)))
    if phase is None:
        raise UnlistedTransition(f"{type(record).__name__} while {node.name} is {node.phase}")
    action = _ACTIONS.get(phase, Action.CONTINUE)
    if action is not node.action:
        fields |= {
            "action": action,
            "directive": node.directive + 1,
            "action_reason": reason,
            "action_round": round_,
        }
    return replace(node, phase=phase, **fields)


def _known(state: State, name: str) -> NodeState:
    node = state.nodes.get(name)
    if node is None:
        raise UnlistedTransition(f"{name} is no node of this job")
    return node


def _with(state: State, *nodes: NodeState, **fields: Any) -> State:
    return replace(state, nodes={**state.nodes, **{node.name: node for node in nodes}}, **fields)


def _claimed(state: State, record: MasterClaimed) -> State:
    if record.epoch <= state.epoch:
        raise UnlistedTransition(f"epoch {record.epoch} after {state.epoch}")
    since = state.since or record.time
    return replace(state, epoch=record.epoch, address=record.address, claimed_at=record.time, since=since)


def _reopened(state: State, record: JobReopened) -> State:
    why = "the job was taken up anew"
    nodes = [
        replace(n if n.phase is P.LOST else _moved(n, record, why, left_at=record.time), left_because=None)
        for n in state.nodes.values()
    ]
    return _with(
        state, *nodes, since=record.time, relaunches={}, blamed={}, stalled=0, ended=None, reason="taken up again"
    )


def _requested(state: State, record: NodeRequested) -> State:
    if record.node in state.nodes:
        raise UnlistedTransition(f"{record.node} was asked for before")
    fresh = NodeState(record.node, record.role, record.index, record.launch, record.host, record.time)
    place = (record.role, record.index)
    relaunches = state.relaunches
    if record.replaces:
        relaunches = {**relaunches, place: relaunches.get(place, 0) + 1}
    return _with(state, _moved(fresh, record), relaunches=relaunches)


def _joined(state: State, record: NodeJoined) -> State:
    node = _moved(
        _known(state, record.node), record,
        joined_at=record.time, host=record.host, slots=record.slots, address=record.address,
        master_port=record.master_port, holdings=record.holdings, after_round=record.after_round,
    )  # fmt: skip
    return _with(state, node)


def _released(state: State, record: NodeReleased) -> State:
    known = _known(state, record.node)
    avoided = state.avoided | {known.host} if record.avoid and known.host else state.avoided
    node = _moved(known, record, record.reason.value, left_at=record.time, left_because=record.reason)
    return _with(state, node, avoided=avoided)


def _lost(state: State, record: NodeLost) -> State:
    known = _known(state, record.node)
    excused = state.excused
    if state.round and known.phase in (P.RUNNING, P.REJOINING) and known.name in member_names(state.round):
        excused = excused | {state.round.number}
    because = known.left_because or record.reason
    node = _moved(known, record, record.reason.value, left_at=record.time, left_because=because, holdings=())
    return _with(state, node, excused=excused)


def _finished(state: State, record: NodeFinished) -> State:
    return _with(state, _moved(_known(state, record.node), record), finished=state.finished | {record.node})


def _faulted(state: State, record: WorkerFaulted) -> State:
    _moved(_known(state, record.node), record)
    state = replace(state, iteration=max(state.iteration, record.iteration))
    if record.reason is not Reason.USER_ERROR:
        return replace(state, excused=state.excused | {record.round})
    first = state.blamed.get(record.round)
    if first is None or (record.died, record.rank) < (first.died, first.rank):
        return replace(state, blamed={**state.blamed, record.round: record})
    return state


def _formed(state: State, record: RoundFormed) -> State:
    fresh = record.round
    if fresh.number != (state.round.number if state.round else 0) + 1:
        raise UnlistedTransition(f"round {fresh.number} after {state.round.number if state.round else 0}")
    names = member_names(fresh)
    nodes = [_moved(_known(state, name), record) for name in names]
    return _with(
        state, *nodes, round=fresh, finished=frozenset(), reason=fresh.reason,
        changed_at=state.changed_at if names == member_names(state.round) else record.time,
        worlds={**state.worlds, fresh.number: world_size(fresh)},
    )  # fmt: skip


def _broken(state: State, record: RoundBroken) -> State:
    if state.round is None or record.round != state.round.number:
        raise UnlistedTransition(f"round {record.round} broken, but it does not run")
    start = state.round.restore.iteration if state.round.restore else 0
    members = (state.nodes[name] for name in member_names(state.round))
    nodes = [_moved(n, record, record.detail, record.round) for n in members if n.phase in (P.RUNNING, P.FINISHED)]
    return _with(
        state, *nodes, since=record.time, reason=record.detail, finished=frozenset(),
        stalled=0 if record.iteration > start else state.stalled + 1,
        iteration=max(state.iteration, record.iteration),
    )  # fmt: skip


def _persisted(state: State, record: ShardPersisted) -> State:
    held = record.holding
    key = (held.round, held.iteration)
    known = state.checkpoints.get(key, Checkpoint())
    if any(shard.shard == held.shard for shard in known.shards):
        return state
    return _remembering(state, key, replace(known, shards=(*known.shards, held)))


def _committed(state: State, record: Committed) -> State:
    key = (record.round, record.iteration)
    return _remembering(state, key, replace(state.checkpoints.get(key, Checkpoint()), manifest=record.key))


def _remembering(state: State, key: tuple[int, int], checkpoint: Checkpoint) -> State:
    every = {**state.checkpoints, key: checkpoint}
    kept = sorted(every)[-KEPT_CHECKPOINTS:]
    # The newest committed one stays, however many unfinished ones follow it.
    kept += [newest for newest in sorted(k for k in every if every[k].manifest)[-1:] if newest not in kept]
    return replace(state, checkpoints={k: every[k] for k in kept}, iteration=max(state.iteration, key[1]))


def _desired(state: State, record: DesiredChanged) -> State:
    return replace(state, sizes={**state.sizes, record.role: record.nodes}, asked_at=record.time)


def _ended(state: State, record: JobEnded) -> State:
    nodes = [
        _moved(n, record, f"the job {record.result.value}", left_at=record.time)
        for n in state.nodes.values()
        if n.phase in LIVE
    ]
    return _with(state, *nodes, ended=record, reason=record.reason, iteration=max(state.iteration, record.iteration))


_FOLDS: dict[type, Callable[[State, Any], State]] = {
    MasterClaimed: _claimed,
    JobReopened: _reopened,
    NodeRequested: _requested,
    NodeJoined: _joined,
    NodeReleased: _released,
    NodeLost: _lost,
    NodeFinished: _finished,
    WorkerFaulted: _faulted,
    RoundFormed: _formed,
    RoundBroken: _broken,
    ShardPersisted: _persisted,
    Committed: _committed,
    DesiredChanged: _desired,
    JobEnded: _ended,
}
