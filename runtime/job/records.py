"""What a job's journal holds: one Struct a fact or decision, JSON lines told apart by `kind`.

`VERSION` is raised when a field changes its meaning; a reader refuses records of a higher one. Times are Unix
seconds and never decrease along a journal.
"""

from enum import StrEnum

import msgspec

from everstep.runtime.protocol.messages import Holding, Refusal, Round

VERSION = 1


class Reason(StrEnum):
    """Why a worker, a node or a round ended. What follows from each stands in `policy.TABLE`."""

    KILLED = "killed"
    USER_ERROR = "user error"
    OOM = "out of memory"
    HARDWARE = "hardware"
    DIVERGED = "no number after a restore"
    DAMAGED = "checkpoint passed over"
    NODE_LOST = "node lost"
    START_FAILED = "start failed"
    NO_HEARTBEAT = "no heartbeat"
    NEVER_JOINED = "never joined"
    STRAGGLER = "straggler"
    HANG = "hang"
    PREEMPTED = "preempted"
    REJOINED = "joined again"
    RESTARTED = "restarted with another"
    GROW = "grow"
    SCALED = "scaled"


class Decision(StrEnum):
    """What follows from a fault."""

    RESTART = "restart in place"
    """The node joins the next round."""
    RELAUNCH = "relaunch"
    """The node leaves; another takes its place."""
    RELAUNCH_ELSEWHERE = "relaunch on another host"
    """The same, and not on its host if there is another."""
    EXCLUDE = "relaunch on another host, avoid this one"
    """The same, and its host gets no more nodes of this job."""
    HAND_OVER = "hand over, then leave"
    """A replacement is asked for at once; the node trains on until it is there, or its grace nearly over."""
    DUMP = "write all stacks, then restart, fail or only report"
    MEMBERSHIP = "form a round with other nodes"
    STEP_BACK = "begin from an older checkpoint"
    REPORT = "report"
    GIVE_UP = "give the node up"
    """It leaves and nothing takes its place."""
    FAIL = "fail the job"


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


class MasterAway(Fact, frozen=True, kw_only=True):
    """The master was stopped or suspended for so long and could hear nobody: what waits for nodes begins anew."""

    away_s: float


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
    """The lost or leaving node whose place it takes; empty for a first launch and for growth."""
    memory_bytes: int = 0
    """What it is to be given; 0: what the spec says."""


class NodeAppeared(Fact, frozen=True, kw_only=True):
    """A node came by itself (placement `joined`), for the first time or again under its old name."""

    node: str
    role: str
    index: int
    host: str


class NodeJoined(Fact, frozen=True, kw_only=True):
    """An agent waits for the next round, and says what it holds."""

    node: str
    host: str
    slots: int
    address: str
    master_port: int
    holdings: tuple[Holding, ...]
    after_round: int
    ip: str = ""
    checked: float = 0.0
    life: int = 0
    number: int = 0
    """Of the agent's joins. While the node trains: it asks for its seat again, nothing else is new."""


class NodeStrayed(Fact, frozen=True, kw_only=True):
    """The node is in another round than its seat's: it is told to join again."""

    node: str
    round: int
    """The one that it is in."""


class NodeLeaving(Fact, frozen=True, kw_only=True):
    """The node will go: told so (preemption), or asked to (scaled down, restarted with another)."""

    node: str
    reason: Reason
    detail: str
    until: float
    """Gone by then at the latest."""


class NodeReleased(Fact, frozen=True, kw_only=True):
    """The node is told to leave."""

    node: str
    reason: Reason


class NodeLost(Fact, frozen=True, kw_only=True):
    """The node is no more, or counts as such."""

    node: str
    reason: Reason
    detail: str = ""
    exit_code: int | None = None
    may_return: bool = False
    """Should it still be there, it is told to join again instead of to leave (placement `joined`)."""


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
    """Unix time of the death, by the master's clock."""


class FaultJudged(Fact, frozen=True, kw_only=True):
    """What follows from a fault, by the table and the limits. One for each fault that is nobody's echo."""

    node: str
    reason: Reason
    decision: Decision
    detail: str
    """Why this decision, in one line."""
    round: int = 0
    """The round that the fault ended; 0: it ended none."""
    avoid: bool = False
    """The node's host gets no more nodes of this job."""


class HangSeen(Fact, frozen=True, kw_only=True):
    """All ranks of the round stand still; the nodes are told to write their stacks."""

    round: int
    still_s: float
    """For so long at least."""
    unmoved: bool = False
    """None has moved in this round: the seconds are since they were told to start."""


class HangOver(Fact, frozen=True, kw_only=True):
    """They move again."""

    round: int


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


class Forgotten(Fact, frozen=True, kw_only=True):
    """Checkpoints are about to be deleted from the store: no round begins from them any more."""

    places: tuple[tuple[int, int], ...]
    """(Round, iteration) of each."""


class Stored(msgspec.Struct, frozen=True):
    """A committed checkpoint as the store has it."""

    key: str
    """Of the manifest."""
    shards: tuple[Holding, ...]
    """All of them."""


class StoreSurveyed(Fact, frozen=True, kw_only=True):
    """The store has checkpoints that this journal does not tell of: it began later, or was lost."""

    found: tuple[Stored, ...]
    rounds: int
    """The highest round that any object of a checkpoint is of: numbers go on from there."""


class PassedOver(Fact, frozen=True, kw_only=True):
    """From these sources no round begins any more. That is nobody's fault."""

    refusals: tuple[Refusal, ...]
    round: int = 0
    """The round that was to begin from them; 0: they were found so before."""


class DesiredChanged(Fact, frozen=True, kw_only=True):
    """Somebody asked for another number of nodes."""

    role: str
    nodes: int
    detail: str = ""
    """Why, where nobody asked: the new nodes did not come in time."""


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
    | MasterAway
    | JobReopened
    | NodeRequested
    | NodeAppeared
    | NodeJoined
    | NodeStrayed
    | NodeLeaving
    | NodeReleased
    | NodeLost
    | NodeFinished
    | WorkerFaulted
    | FaultJudged
    | HangSeen
    | HangOver
    | RoundFormed
    | RoundBroken
    | ShardPersisted
    | Committed
    | Forgotten
    | StoreSurveyed
    | PassedOver
    | DesiredChanged
    | JobEnded
)
