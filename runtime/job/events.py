"""The brain's inputs. Events from agents carry the message as it came; it may be late, repeated or wrong."""

from dataclasses import dataclass

from everstep.runtime.job.checkpoints import Stored
from everstep.runtime.protocol.holdings import Refusal
from everstep.runtime.protocol.messages import (
    Disconnected,
    Dumped,
    Evidence,
    Finished,
    Heartbeat,
    Join,
    Leaving,
    Persisted,
    SelfTest,
    ShardRequest,
    Unrestored,
    WorkerExit,
)


@dataclass(frozen=True)
class Survey:
    """The result of a survey of the job's checkpoints in the store."""

    unjournaled: tuple[Stored, ...] = ()
    """Committed checkpoints, newest first, that may be intact and of which the journal knows no commit."""
    refusals: tuple[Refusal, ...] = ()
    """Checkpoints that are damaged or cannot be read."""
    rounds: int = 0
    """The highest round of any checkpoint in the store."""


@dataclass(frozen=True)
class Opened:
    """A master has claimed the job and starts."""

    survey: Survey = Survey()


@dataclass(frozen=True)
class RestoreFailed:
    """An agent reports that it could not restore the running round's state."""

    unrestored: Unrestored
    survey: Survey = Survey()
    """A survey of the store made after the report."""


@dataclass(frozen=True)
class Joined:
    """An agent asks to be in the next round."""

    join: Join


@dataclass(frozen=True)
class HeartbeatSeen:
    """An agent sent a heartbeat."""

    heartbeat: Heartbeat


@dataclass(frozen=True)
class WorkerExited:
    """An agent reports a worker's death."""

    exit: WorkerExit


@dataclass(frozen=True)
class RankDisconnected:
    """An agent reports that a worker, which lives, has lost its connection to another."""

    disconnected: Disconnected


@dataclass(frozen=True)
class NodeFinishedRound:
    """An agent reports that all its workers ended with exit code 0."""

    finished: Finished


@dataclass(frozen=True)
class ShardStored:
    """An agent reports a shard in the store."""

    persisted: Persisted


@dataclass(frozen=True)
class EvidenceGiven:
    """An agent reports what it knows of a state that its node has staged."""

    evidence: Evidence


@dataclass(frozen=True)
class DataShardAsked:
    """A worker asks for its next data shard, or reports one."""

    request: ShardRequest


@dataclass(frozen=True)
class LeaveAnnounced:
    """An agent announces that its node must leave soon."""

    leaving: Leaving


@dataclass(frozen=True)
class StacksDumped:
    """An agent has written the stacks of its ranks."""

    dumped: Dumped


@dataclass(frozen=True)
class NodeChecked:
    """An agent reports the test of its node."""

    tested: SelfTest


@dataclass(frozen=True)
class ManifestWritten:
    """The manifest of a checkpoint exists."""

    round: int
    iteration: int
    key: str


@dataclass(frozen=True)
class NodeCreated:
    """The platform has created a requested node."""

    node: str


@dataclass(frozen=True)
class NodeGone:
    """The platform reports that a node is gone."""

    node: str
    detail: str
    exit_code: int | None = None
    gave_way: bool = False
    """It was preempted, which is not a fault of the job."""


@dataclass(frozen=True)
class ScaleRequested:
    """Another number of nodes is requested."""

    role: str
    nodes: int
    timeout_s: float = 0.0
    """New nodes that have not joined for this long are given up; 0: the role's `scale_out_timeout_s`."""
    stamp: int | None = None
    """Of a request that stands where every master reads it: tells it from an equal one made later. None: asked once."""


@dataclass(frozen=True)
class StopRequested:
    """End the job and its nodes."""

    reason: str


@dataclass(frozen=True)
class DeletionDue:
    """These checkpoints, as (round, iteration), are beyond retention. Those that the state then no longer knows may be
    deleted."""

    checkpoints: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Opened
    | Joined
    | HeartbeatSeen
    | WorkerExited
    | RankDisconnected
    | NodeFinishedRound
    | ShardStored
    | RestoreFailed
    | EvidenceGiven
    | DataShardAsked
    | LeaveAnnounced
    | StacksDumped
    | NodeChecked
    | ManifestWritten
    | DeletionDue
    | NodeCreated
    | NodeGone
    | ScaleRequested
    | StopRequested
    | Tick
)
