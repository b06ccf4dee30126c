"""Everything that the keeper's core decides: answers to questions, work to start, reports to the master.

`node.keeper` carries them out in the order given. Work takes its time and ends with the event named here.
"""

from dataclasses import dataclass
from typing import NamedTuple

from everstep.runtime.checkpoint.errors import KeeperError, SegmentError
from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.holdings import CopyRequest, Holding, Refusal


class Location(NamedTuple):
    """The bytes of a state in a slot, or of a slot that will hold one."""

    segment: int
    """The segment's number."""
    slot: int
    size: int
    """Bytes."""


# Answers


class SlotGrant(NamedTuple):
    """A slot that may be written now."""

    location: Location
    waited_s: float
    """Seconds spent waiting while memory was still being allocated."""


class StartState(NamedTuple):
    """The state that a round starts from, for one local rank or for all."""

    location: Location | None = None
    """None: the round starts from nothing, or the state was sharded over another number of ranks."""
    round: int = 0
    iteration: int = 0
    digest: str = ""
    source: Holding | None = None
    """Where it came from; None: it was in this node's memory."""
    shards: tuple[Holding, ...] = ()
    """Of a sharded state: where every shard can be read, best first."""
    why: str = ""
    """What was wrong with the sources that come before this one."""


Holdings = tuple[Holding, ...]
Reply = int | str | SlotGrant | StartState | Location | Holdings | None


@dataclass(frozen=True)
class Answer:
    """Answer a question."""

    ticket: int
    reply: Reply = None


@dataclass(frozen=True)
class Refuse:
    """Answer a question with an error."""

    ticket: int
    error: KeeperError | SegmentError


# Memory


@dataclass(frozen=True)
class MakeSegment:
    """Make a file with slots that have no memory yet, if there is room for them and `copies` more. Ends at once with
    SegmentMade."""

    segment: int
    name: str
    slots: int
    capacity: int
    copies: int


@dataclass(frozen=True)
class AllocateSlot:
    """Allocate the segment's next slot. Ends with AllocationEnded."""

    segment: int


@dataclass(frozen=True)
class EndAllocation:
    """Allocate no more slots of the segment."""

    segment: int


@dataclass(frozen=True)
class RemoveSegment:
    """Remove the segment's file."""

    segment: int


# Work on slots


@dataclass(frozen=True)
class ComputeDigest:
    """Compute the digests of a slot. Ends with DigestEnded."""

    work: int
    location: Location


@dataclass(frozen=True)
class CheckDigest:
    """Compare a slot with its digest. Ends with CheckEnded."""

    work: int
    location: Location
    digest: str


@dataclass(frozen=True)
class FetchShard:
    """Bring a shard into a slot. Ends with FetchEnded."""

    work: int
    location: Location
    source: Holding
    ticket: int | None = None
    """The question to report progress to whenever bytes arrive (see ReportProgress)."""


@dataclass(frozen=True)
class PutObject:
    """Copy a slot to the store. Ends with PutEnded."""

    work: int
    location: Location
    key: str
    iteration: int


@dataclass(frozen=True)
class RequestPeerCopy:
    """Ask a peer to fetch that shard. Ends with PeerCopyEnded."""

    work: int
    peer: str
    request: CopyRequest


# Reports


@dataclass(frozen=True)
class ReportPersisted:
    """Tell the master that the shard is in the store."""

    holding: Holding


@dataclass(frozen=True)
class ReportEvidence:
    """Tell the master the digests of the state in that slot, which is not written until StateCertified, or the end of
    the round."""

    identity: Identity
    location: Location


@dataclass(frozen=True)
class ReportUnrestored:
    """Tell the master that no source supplies the state that the round was to start from."""

    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class ReportProgress:
    """Tell the peer that asked that its question is being worked on."""

    ticket: int


@dataclass(frozen=True)
class Warn:
    """Log a line for people."""

    text: str


Work = AllocateSlot | ComputeDigest | CheckDigest | FetchShard | PutObject | RequestPeerCopy
Action = (
    Work
    | Answer
    | Refuse
    | MakeSegment
    | EndAllocation
    | RemoveSegment
    | ReportPersisted
    | ReportEvidence
    | ReportUnrestored
    | ReportProgress
    | Warn
)
