"""Everything that the keeper's core is told. `keeper_core` has the table of what it does with each event.

A question has a ticket and gets exactly one Answer or Refuse. Work is done outside of the core (see `actions`) and ends
with exactly one event that has its number.
"""

from dataclasses import dataclass

from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.rounds import Seat

# Questions


@dataclass(frozen=True)
class BeginRound:
    """A round begins; its workers are not started yet. Answer: None."""

    ticket: int
    seat: Seat


@dataclass(frozen=True)
class Announce:
    """A worker wants slots for states of `capacity` bytes. Answer: the number of its segment."""

    ticket: int
    local_rank: int
    capacity: int
    sharded: bool
    waits: bool = False
    """The answer comes when all slots have their memory, or no more slots will."""


@dataclass(frozen=True)
class Acquire:
    """A worker wants to stage that iteration. Answer: SlotGrant; None if no slot is free and it does not wait."""

    ticket: int
    local_rank: int
    iteration: int
    waits: bool


@dataclass(frozen=True)
class CommitStage:
    """A worker has written `size` bytes into the slot it was granted. Answer: None."""

    ticket: int
    local_rank: int
    slot: int
    iteration: int
    size: int
    persist: bool
    """Persist it, whatever the interval says."""
    thinned: str
    """Why the worker does not stage every iteration; empty if it does."""
    flaw: str
    """Why these bytes are no shard; empty for a shard."""


@dataclass(frozen=True)
class WaitForRestore:
    """A worker wants the state that the round starts from. Answer: StartState, once it is in memory."""

    ticket: int
    local_rank: int


@dataclass(frozen=True)
class Flush:
    """A worker wants an iteration of this round committed. Answer: the manifest's key; "" if this node does not
    persist."""

    ticket: int
    local_rank: int
    iteration: int


@dataclass(frozen=True)
class PersistNewest:
    """Copy the newest state of this round to the store. Answer: None, at once."""

    ticket: int


@dataclass(frozen=True)
class Drain:
    """The workers have ended, and the node leaves or reports so. Answer: None, once nothing is on its way to the store
    or waits for that."""

    ticket: int


@dataclass(frozen=True)
class ListHoldings:
    """The master asks what this node's memory can serve at `address`. Answer: Holdings, once all digests are known."""

    ticket: int
    address: str


@dataclass(frozen=True)
class CopyShard:
    """A peer wants its shard copied into this node's memory. Answer: None, once the copy is complete."""

    ticket: int
    source: Holding
    copies: int = 1
    """How many peers are asked for one."""


@dataclass(frozen=True)
class OpenShard:
    """A peer reads a shard until ReaderGone. Answer: Location, or None if the shard is not in memory."""

    ticket: int
    round: int
    iteration: int
    shard: int


Question = (
    BeginRound
    | Announce
    | Acquire
    | CommitStage
    | WaitForRestore
    | Flush
    | PersistNewest
    | Drain
    | ListHoldings
    | CopyShard
    | OpenShard
)

# Facts


@dataclass(frozen=True)
class WorkerDied:
    """A worker has died."""

    local_rank: int


@dataclass(frozen=True)
class ReaderGone:
    """The peer that opened a shard with that ticket has finished."""

    ticket: int


@dataclass(frozen=True)
class CheckpointCommitted:
    """The master has made the checkpoint visible."""

    identity: Identity
    manifest: str


@dataclass(frozen=True)
class StateCertified:
    """The master has compared that state with other nodes' replicas: it is sound."""

    identity: Identity


@dataclass(frozen=True)
class Tick:
    """The time of `next_deadline` has come."""


@dataclass(frozen=True)
class NodeLeaving:
    """The node leaves: every wait ends and all memory goes."""


Fact = WorkerDied | ReaderGone | CheckpointCommitted | StateCertified | Tick | NodeLeaving

# Ends of work


@dataclass(frozen=True)
class SegmentMade:
    """The segment has its file, or `error` says why it cannot."""

    segment: int
    error: str = ""


@dataclass(frozen=True)
class AllocationEnded:
    """The first slot of the segment that had no memory has it now, or `error` says why it cannot."""

    segment: int
    error: str = ""


@dataclass(frozen=True)
class DigestEnded:
    """The digest of a complete slot is known, or `flaw` says why its bytes are no shard."""

    work: int
    digest: str = ""
    flaw: str = ""


@dataclass(frozen=True)
class CheckEnded:
    """A complete slot was compared with its digest; `flaw` is empty if they agree."""

    work: int
    flaw: str = ""


@dataclass(frozen=True)
class FetchEnded:
    """The verified bytes of a shard are in a slot, or `refusal` says why not."""

    work: int
    refusal: Refusal | None = None


@dataclass(frozen=True)
class PutEnded:
    """The store has an object, or `error` says why not."""

    work: int
    error: str = ""


@dataclass(frozen=True)
class PeerCopyEnded:
    """A peer has its copy, or `error` says why not."""

    work: int
    error: str = ""
    silent: bool = False
    """The peer sent nothing for too long."""


WorkEnd = SegmentMade | AllocationEnded | DigestEnded | CheckEnded | FetchEnded | PutEnded | PeerCopyEnded
Event = Question | Fact | WorkEnd
