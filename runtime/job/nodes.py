"""One node of a job: its phases, their transition table, and its directives. An unlisted pair raises."""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import (
    CheckOver,
    CheckRequested,
    Fact,
    HangOver,
    HangSeen,
    JobEnded,
    JobReopened,
    NodeAppeared,
    NodeFinished,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    NodeRequested,
    NodeStrayed,
    NodeSuspected,
    NodeTested,
    RoundBroken,
    RoundFormed,
    WorkerFaulted,
)
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Action


class NodePhase(StrEnum):
    """What a node is doing, as far as the master knows."""

    ABSENT = "absent"
    REQUESTED = "requested"
    """Requested; has not joined yet."""
    WAITING = "waiting"
    """Has joined; waits for a round."""
    CHECKING = "checking"
    """Has joined; tests itself before the round that follows a fault."""
    RUNNING = "running"
    FINISHED = "finished"
    REJOINING = "rejoining"
    """Its round was broken; it is told to join again."""
    SUSPECTED = "suspected"
    """It is told to join again, and no round waits for it: it answers nobody, or a round was formed without it."""
    RELEASED = "released"
    """Told to leave."""
    LOST = "lost"


class UnlistedTransition(ValueError):  # noqa: N818 (a name that reads well in a traceback)
    """A record that the tables do not allow in this state: the journal is damaged, or the brain has a bug."""


P = NodePhase

LIVE = (P.REQUESTED, P.WAITING, P.CHECKING, P.RUNNING, P.FINISHED, P.REJOINING, P.SUSPECTED)
"""Phases of nodes that count towards the job's size."""
JOINED = (P.WAITING, P.CHECKING, P.RUNNING, P.FINISHED, P.REJOINING, P.SUSPECTED)
"""Phases of nodes whose agent has joined and must send heartbeats."""

NODE_TRANSITIONS: dict[tuple[NodePhase, type], NodePhase] = {
    (P.ABSENT, NodeRequested): P.REQUESTED,
    (P.ABSENT, NodeAppeared): P.REQUESTED,
    (P.LOST, NodeAppeared): P.REQUESTED,
    (P.RELEASED, NodeAppeared): P.REQUESTED,
    (P.REQUESTED, NodeJoined): P.WAITING,
    (P.WAITING, NodeJoined): P.WAITING,
    (P.REJOINING, NodeJoined): P.WAITING,
    (P.SUSPECTED, NodeJoined): P.WAITING,
    (P.RUNNING, NodeJoined): P.RUNNING,
    (P.WAITING, NodeStrayed): P.REJOINING,
    (P.WAITING, CheckRequested): P.CHECKING,
    (P.CHECKING, NodeTested): P.WAITING,
    (P.CHECKING, CheckOver): P.WAITING,
    (P.CHECKING, NodeJoined): P.CHECKING,
    (P.CHECKING, NodeStrayed): P.REJOINING,
    (P.RUNNING, NodeStrayed): P.RUNNING,
    (P.FINISHED, NodeStrayed): P.FINISHED,
    (P.WAITING, RoundFormed): P.RUNNING,
    (P.RUNNING, NodeFinished): P.FINISHED,
    (P.RUNNING, HangSeen): P.RUNNING,
    (P.RUNNING, HangOver): P.RUNNING,
    **{(phase, WorkerFaulted): phase for phase in (P.RUNNING, P.REJOINING, P.WAITING, P.CHECKING, P.SUSPECTED)},
    (P.RUNNING, RoundBroken): P.REJOINING,
    (P.FINISHED, RoundBroken): P.REJOINING,
    (P.REJOINING, NodeSuspected): P.SUSPECTED,
    (P.REJOINING, RoundFormed): P.SUSPECTED,
    **{(phase, NodeLeaving): phase for phase in LIVE},
    **{
        (phase, kind): to
        for phase in LIVE
        for kind, to in ((NodeReleased, P.RELEASED), (NodeLost, P.LOST), (JobEnded, P.RELEASED), (JobReopened, P.LOST))
    },
    (P.RELEASED, NodeLost): P.LOST,
    (P.RELEASED, JobReopened): P.LOST,
}

_ACTIONS = {
    P.CHECKING: Action.CHECK,
    P.REJOINING: Action.REJOIN,
    P.SUSPECTED: Action.REJOIN,
    P.RELEASED: Action.LEAVE,
    P.LOST: Action.LEAVE,
}


class NodeState(msgspec.Struct, frozen=True):
    """One node of the job; kept after it is lost."""

    name: str
    role: str
    index: int
    launch: int
    host: str
    requested_at: float
    phase: NodePhase = P.ABSENT
    replaces: str = ""
    """The node that it replaces."""
    memory_bytes: int = 0
    """Its memory; 0: as in the spec."""
    joined_at: float = 0.0
    slots: int = 0
    address: str = ""
    master_port: int = 0
    ip: str = ""
    checked: float = 0.0
    """Seconds that its own check took; 0: none."""
    holdings: tuple[Holding, ...] = ()
    after_round: int = 0
    life: int = 0
    """The life of the agent that joined last."""
    join: int = 0
    """The number of that agent's newest join."""
    round: int = 0
    """The last round it was a member of; the next fields are its ranks in it."""
    group_rank: int = 0
    first_rank: int = 0
    role_first_rank: int = 0
    peers: tuple[str, ...] = ()
    """The addresses of the members that keep copies of its shards in that round."""
    keeps: int = 0
    """Members whose shards it keeps copies of in that round."""
    zone: str = ""
    """The failure domain of its machine; empty: unknown."""
    finished_round: int = 0
    """The last round that it finished."""
    faulted_round: int = 0
    """The last round in which it reported a worker's death."""
    leaving_until: float = 0.0
    """When it must be gone (Unix time): it is not chosen for rounds, and its replica is free. 0: it stays."""
    leaving_because: Reason | None = None
    left_at: float = 0.0
    """When it was released, lost or found silent, whichever came last."""
    left_because: Reason | None = None
    directive: int = 0
    """Number of the directive; rises whenever `action` changes or is repeated."""
    action: Action = Action.CONTINUE
    action_reason: str = ""
    action_round: int = 0

    @property
    def is_leaving(self) -> bool:
        """Whether it must leave soon."""
        return self.leaving_until > 0

    @property
    def replica(self) -> tuple[str, int]:
        """(role, index), which its replacements inherit."""
        return self.role, self.index


def node_after(node: NodeState, record: Fact, reason: str = "", round_: int = 0, **fields: Any) -> NodeState:
    """The node after the record, with its next directive. Raises UnlistedTransition.

    A directive is new if its action differs, or the round that it ends.
    """
    phase = NODE_TRANSITIONS.get((node.phase, type(record)))
    if phase is None:
        raise UnlistedTransition(f"{type(record).__name__} while {node.name} is {node.phase}")
    action = fields.pop("action", None) or _ACTIONS.get(phase, Action.CONTINUE)
    if action is not node.action or (action is Action.REJOIN and round_ != node.action_round):
        fields |= {
            "action": action,
            "directive": node.directive + 1,
            "action_reason": reason,
            "action_round": round_,
        }
    return replace(node, phase=phase, **fields)
