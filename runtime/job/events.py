"""What the brain is told. Facts from agents carry the message as it came; it may be late, repeated or wrong."""

from dataclasses import dataclass

from everstep.runtime.job.records import Stored
from everstep.runtime.protocol.messages import (
    Dumped,
    Finished,
    Heartbeat,
    Join,
    Leaving,
    Persisted,
    Refusal,
    Unrestored,
    WorkerExit,
)


@dataclass(frozen=True)
class Survey:
    """What a master sees of the job's checkpoints in the store."""

    unjournaled: tuple[Stored, ...] = ()
    """The newest that are committed and may be whole."""
    refusals: tuple[Refusal, ...] = ()
    """Those of which it sees that they are not, or that it cannot read."""
    rounds: int = 0
    """The highest round that any of them is of."""


@dataclass(frozen=True)
class Opened:
    """A master has claimed the job and begins."""

    survey: Survey = Survey()


@dataclass(frozen=True)
class RestoreFailed:
    """An agent reports that the running round has nothing to begin from there."""

    unrestored: Unrestored
    survey: Survey = Survey()
    """Of the store since then."""


@dataclass(frozen=True)
class Joined:
    """An agent asks to be in the next round."""

    join: Join


@dataclass(frozen=True)
class HeartbeatSeen:
    """An agent gave a sign of life."""

    heartbeat: Heartbeat


@dataclass(frozen=True)
class WorkerExited:
    """An agent reports a worker's death."""

    exit: WorkerExit


@dataclass(frozen=True)
class NodeFinishedRound:
    """An agent reports that all its workers ended well."""

    finished: Finished


@dataclass(frozen=True)
class ShardStored:
    """An agent reports a shard in the store."""

    persisted: Persisted


@dataclass(frozen=True)
class LeaveAnnounced:
    """An agent says that its node will go soon."""

    leaving: Leaving


@dataclass(frozen=True)
class StacksDumped:
    """An agent has written the stacks of its ranks."""

    dumped: Dumped


@dataclass(frozen=True)
class ManifestWritten:
    """The manifest of a checkpoint exists."""

    round: int
    iteration: int
    key: str


@dataclass(frozen=True)
class NodeCreated:
    """The platform has made a node that was asked for."""

    node: str


@dataclass(frozen=True)
class NodeGone:
    """The platform says that a node is no more."""

    node: str
    detail: str
    exit_code: int | None = None
    gave_way: bool = False
    """To somebody more important: nobody's fault."""


@dataclass(frozen=True)
class ScaleRequested:
    """Somebody wants another number of nodes."""

    role: str
    nodes: int


@dataclass(frozen=True)
class StopRequested:
    """The job shall end for good, with its nodes."""

    reason: str


@dataclass(frozen=True)
class DeletionDue:
    """These (round, iteration)s need not stay in the store. Those that the state does not know after this may go."""

    checkpoints: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Opened
    | Joined
    | HeartbeatSeen
    | WorkerExited
    | NodeFinishedRound
    | ShardStored
    | RestoreFailed
    | LeaveAnnounced
    | StacksDumped
    | ManifestWritten
    | DeletionDue
    | NodeCreated
    | NodeGone
    | ScaleRequested
    | StopRequested
    | Tick
)
