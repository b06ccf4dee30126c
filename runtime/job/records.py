"""The records of a job's journal: one Struct per fact or decision, stored as JSON lines with a `kind`.

`VERSION` rises when a field changes its meaning; a reader refuses records of a higher version. Invariant: times (Unix
seconds) never decrease along a journal.
"""

import msgspec

from everstep.runtime.job.checkpoints import Stored
from everstep.runtime.job.reasons import Decision, JobResult, Reason
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.rounds import Round
from everstep.runtime.watch.slow_ranks import SlowPart

VERSION = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """The fields of all records."""

    time: float
    v: int = VERSION


class MasterClaimed(Fact, frozen=True, kw_only=True):
    """A master took the job over: the first record of every master. Agents read its address here."""

    epoch: int
    address: str
    """host:port of its HTTP server."""


class MasterAway(Fact, frozen=True, kw_only=True):
    """The master was suspended for `away_s` and could not hear its nodes: all timeouts for nodes restart."""

    away_s: float


class JobReopened(Fact, frozen=True, kw_only=True):
    """A master took up a job that had ended without success: counters are reset, old nodes are lost."""


class NodeRequested(Fact, frozen=True, kw_only=True):
    """A node is requested from the platform."""

    node: str
    role: str
    index: int
    launch: int
    host: str
    replaces: str = ""
    """The lost or leaving node that it replaces; empty for a first launch and for growth."""
    memory_bytes: int = 0
    """Its memory; 0: as in the spec."""


class NodeAppeared(Fact, frozen=True, kw_only=True):
    """A node came by itself (placement `joined`), new or again under its old name."""

    node: str
    role: str
    index: int
    host: str


class NodeJoined(Fact, frozen=True, kw_only=True):
    """An agent waits for the next round and lists the shards in its memory."""

    node: str
    host: str
    slots: int
    address: str
    master_port: int
    holdings: tuple[Holding, ...]
    after_round: int
    ip: str = ""
    zone: str = ""
    checked: float = 0.0
    prepared: float = 0.0
    life: int = 0
    number: int = 0
    """Counts the agent's joins. If the node is running, this join only asks for its seat again."""


class NodeStrayed(Fact, frozen=True, kw_only=True):
    """The node is in another round than its seat's: it is told to join again."""

    node: str
    round: int
    """The round that it is in."""


class NodeLeaving(Fact, frozen=True, kw_only=True):
    """The node must leave soon: it is preempted, scaled down, or restarted with another node."""

    node: str
    reason: Reason
    detail: str
    until: float
    """When it must be gone."""


class NodeReleased(Fact, frozen=True, kw_only=True):
    """The node is told to leave."""

    node: str
    reason: Reason


class NodeLost(Fact, frozen=True, kw_only=True):
    """The node is gone, or counts as gone."""

    node: str
    reason: Reason
    detail: str = ""
    exit_code: int | None = None
    may_return: bool = False
    """If it is still alive, it is told to join again instead of to leave (placement `joined`)."""


class NodeSuspected(Fact, frozen=True, kw_only=True):
    """The others stand still and the node answers neither them nor the master: the next round does not wait for it. It
    stays in the job, and is lost only after the whole silence."""

    node: str
    round: int
    by: tuple[str, ...]
    """Who asked it, at most 8."""


class NodeFinished(Fact, frozen=True, kw_only=True):
    """All workers of the node ended the round with exit code 0."""

    node: str
    round: int


class WorkerFaulted(Fact, frozen=True, kw_only=True):
    """A worker died without finishing."""

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
    kernel: tuple[str, ...] = ()
    """What its node's kernel said about that time."""
    failed: tuple[int, ...] = ()
    """The ranks of its node that had failed by then with errors of their own, in order; echoes of others do not count.
    Empty: all were echoes, or it is not known."""


class FaultJudged(Fact, frozen=True, kw_only=True):
    """The decision about a fault, by the table and the limits. One for each fault that is not an echo of another."""

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
    """Seconds without progress, at least."""
    unmoved: bool = False
    """No rank has made progress in this round: the seconds count from the start of the workers."""
    explanation: str = ""
    """In the state: the sentence of HangExplained, once it is known."""


class HangExplained(Fact, frozen=True, kw_only=True):
    """Who keeps the others waiting, from where all ranks stand (`everstep.runtime.watch.hang_culprit`)."""

    round: int
    ranks: tuple[int, ...] = ()
    """Empty: no rank in particular."""
    detail: str
    """One sentence."""


class HangOver(Fact, frozen=True, kw_only=True):
    """The ranks make progress again."""

    round: int


class SlowSeen(Fact, frozen=True, kw_only=True):
    """The others wait for a node's ranks in iteration after iteration. Once per round, node and part."""

    round: int
    node: str
    ranks: tuple[int, ...]
    """The slowest first; they may be on several nodes, of which `node` has the slowest."""
    part: SlowPart
    detail: str
    """One sentence."""


class RoundFormed(Fact, frozen=True, kw_only=True):
    """A round was formed; its reason is in the round."""

    round: Round


class CheckRequested(Fact, frozen=True, kw_only=True):
    """Hardware may have ended this round: its waiting members are told to test themselves before the
    next one is formed."""

    round: int


class NodeTested(Fact, frozen=True, kw_only=True):
    """A node has tested itself before a restart."""

    node: str
    round: int
    """The round whose end asked for it."""
    seconds: float
    problem: str = ""
    """The device that is unfit, and why; empty: it is fit."""


class CheckOver(Fact, frozen=True, kw_only=True):
    """The nodes that have not answered their test in time are taken as they are."""

    round: int
    nodes: tuple[str, ...]
    """The first of them, by name."""


class RoundBroken(Fact, frozen=True, kw_only=True):
    """The running round is over; its members are told to join again."""

    round: int
    reason: Reason
    detail: str
    node: str = ""
    """The node whose fault or loss broke it."""
    iteration: int = 0
    """The newest iteration that any node reported in it."""


class ShardPersisted(Fact, frozen=True, kw_only=True):
    """A complete shard is in the store."""

    holding: Holding


class Committed(Fact, frozen=True, kw_only=True):
    """A checkpoint was committed: its manifest exists."""

    round: int
    iteration: int
    key: str
    """Key of the manifest."""


class StateCertified(Fact, frozen=True, kw_only=True):
    """The replicas of a state agree, and nothing speaks against it: it may be restored."""

    round: int
    iteration: int
    detail: str
    """What was compared, in one line."""


class StateRejected(Fact, frozen=True, kw_only=True):
    """The replicas of a state differ, or it cannot be sound: it, and what followed it in its round, is not restored."""

    round: int
    iteration: int
    nodes: tuple[str, ...] = ()
    """Those whose replica differs from that of a majority; empty if there is no majority."""
    detail: str


class BatchSkipped(Fact, frozen=True, kw_only=True):
    """Decided: no later round does this iteration, whose loss was unsound each time."""

    iteration: int
    detail: str


class DataShardTaken(Fact, frozen=True, kw_only=True):
    """A worker does this position of a queue of data shards."""

    queue: str
    size: int
    worker: str
    """NODE/LOCAL_RANK"""
    round: int
    number: int
    """Of its request."""
    position: int


class DataShardEnded(Fact, frozen=True, kw_only=True):
    """A worker has done its position, or gives it back."""

    queue: str
    worker: str
    round: int
    number: int
    """Of the request that reports it."""
    position: int
    is_done: bool
    iteration: int = 0
    """The first iteration whose saved state includes it; 0: no checkpoint does."""


class Forgotten(Fact, frozen=True, kw_only=True):
    """Checkpoints are about to be deleted from the store: no later round restores them."""

    places: tuple[tuple[int, int], ...]
    """(Round, iteration) of each."""


class StoreSurveyed(Fact, frozen=True, kw_only=True):
    """The store has checkpoints that this journal does not know: the journal began later, or was lost."""

    found: tuple[Stored, ...]
    rounds: int
    """The highest round of any checkpoint in the store: later rounds have higher numbers."""


class PassedOver(Fact, frozen=True, kw_only=True):
    """These sources are not restored any more. This is not charged as a fault."""

    refusals: tuple[Refusal, ...]
    round: int = 0
    """The round that was to restore them; 0: they were found by a survey."""


class DesiredChanged(Fact, frozen=True, kw_only=True):
    """The desired number of nodes has changed."""

    role: str
    nodes: int
    timeout_s: float = 0.0
    """New nodes that have not joined for this long are given up; 0: the role's `scale_out_timeout_s`."""
    stamp: int = 0
    """That of the request, see `ScaleRequested`."""
    detail: str = ""
    """Why, if nobody asked for it: new nodes did not join in time."""


class JobEnded(Fact, frozen=True, kw_only=True):
    """The last decision of a job."""

    result: JobResult
    reason: str
    error: str = ""
    """The first failing rank's traceback."""
    iteration: int = 0
    exit_code: int = 0


Record = (
    MasterClaimed | MasterAway | JobReopened
    | NodeRequested | NodeAppeared | NodeJoined | NodeStrayed | NodeLeaving | NodeReleased | NodeLost | NodeSuspected
    | NodeFinished | WorkerFaulted | FaultJudged
    | HangSeen | HangExplained | HangOver | SlowSeen
    | RoundFormed | CheckRequested | NodeTested | CheckOver | RoundBroken
    | ShardPersisted | Committed | StateCertified | StateRejected | BatchSkipped
    | DataShardTaken | DataShardEnded
    | Forgotten | StoreSurveyed | PassedOver
    | DesiredChanged | JobEnded
)  # fmt: skip
