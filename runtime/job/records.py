"""What a job's journal holds: one Struct a fact or decision, JSON lines told apart by `kind`.

`VERSION` is raised when a field changes its meaning; a reader refuses records of a higher one. Times are Unix
seconds and never decrease along a journal.
"""

from enum import StrEnum

import msgspec

from runtime.job.messages import Holding, Round

VERSION = 1


class Reason(StrEnum):
    """Why a worker, a node or a round ended."""

    KILLED = "killed"
    """A signal from outside, eviction, preemption."""
    USER_ERROR = "user error"
    OOM = "out of memory"
    HARDWARE = "hardware"
    NODE_LOST = "node lost"
    NO_HEARTBEAT = "no heartbeat"
    NEVER_JOINED = "never joined"
    REJOINED = "joined again"
    """An agent left its round without saying why."""
    GROW = "grow"
    SCALED = "scaled"


class JobResult(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    NO_QUORUM = "no_quorum"


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """What all records have."""

    time: float
    v: int = VERSION


class MasterClaimed(Fact, frozen=True, kw_only=True):
    """A master took the job over: the first record of each. Agents read its address here."""

    epoch: int
    address: str
    """host:port of its HTTP server."""


class JobReopened(Fact, frozen=True, kw_only=True):
    """A master took up a job that had ended otherwise than by success: counters start anew, old nodes are lost."""


class NodeRequested(Fact, frozen=True, kw_only=True):
    """The platform shall make this node."""

    node: str
    role: str
    index: int
    launch: int
    host: str
    replaces: str = ""
    """The lost node whose place it takes; empty for a first launch and for growth."""


class NodeJoined(Fact, frozen=True, kw_only=True):
    """An agent waits for the next round, and says what it holds."""

    node: str
    host: str
    slots: int
    address: str
    master_port: int
    holdings: tuple[Holding, ...]
    after_round: int


class NodeReleased(Fact, frozen=True, kw_only=True):
    """The node is told to leave."""

    node: str
    reason: Reason
    avoid: bool = False
    """Its host gets no more nodes of this job."""


class NodeLost(Fact, frozen=True, kw_only=True):
    """The node is no more, or counts as such."""

    node: str
    reason: Reason
    detail: str = ""
    exit_code: int | None = None


class NodeFinished(Fact, frozen=True, kw_only=True):
    """All workers of the node ended the round with exit 0."""

    node: str
    round: int


class WorkerFaulted(Fact, frozen=True, kw_only=True):
    """A worker died otherwise than by finishing."""

    node: str
    round: int
    rank: int
    local_rank: int
    exit_code: int
    iteration: int
    reason: Reason
    error: str = ""
    died: float = 0.0
    """Unix time of the death by the node's clock."""


class RoundFormed(Fact, frozen=True, kw_only=True):
    """A membership was agreed; its reason is in the round."""

    round: Round


class RoundBroken(Fact, frozen=True, kw_only=True):
    """The running round is over; its members are told to join again."""

    round: int
    reason: Reason
    detail: str
    node: str = ""
    """Whose fault or loss broke it."""
    iteration: int = 0
    """The newest iteration anyone reported from it."""


class ShardPersisted(Fact, frozen=True, kw_only=True):
    """A shard lies whole in the store."""

    holding: Holding


class Committed(Fact, frozen=True, kw_only=True):
    """A checkpoint became visible: its manifest exists."""

    round: int
    iteration: int
    key: str
    """Of the manifest."""


class DesiredChanged(Fact, frozen=True, kw_only=True):
    """Somebody asked for another number of nodes."""

    role: str
    nodes: int


class JobEnded(Fact, frozen=True, kw_only=True):
    """The last decision of a job."""

    result: JobResult
    reason: str
    error: str = ""
    """The first failing rank's traceback."""
    iteration: int = 0
    exit_code: int = 0


Record = (
    MasterClaimed
    | JobReopened
    | NodeRequested
    | NodeJoined
    | NodeReleased
    | NodeLost
    | NodeFinished
    | WorkerFaulted
    | RoundFormed
    | RoundBroken
    | ShardPersisted
    | Committed
    | DesiredChanged
    | JobEnded
)
