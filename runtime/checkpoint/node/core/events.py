"""What the keeper is asked and told, and what it decides: the events and actions of `keeper_state`.

A question has a ticket, and gets exactly one Answer or Refuse for it. A work is something that takes its time and is
done without the keeper: each has one number and ends with exactly one event of that number.
"""

from dataclasses import dataclass
from typing import NamedTuple

from everstep.runtime.checkpoint.node.core.slots import Identity
from everstep.runtime.protocol.messages import Holding, Refusal, Seat


class Where(NamedTuple):
    """The whole state in a slot, or the bytes of a slot that will be one."""

    segment: int
    """Number of the segment."""
    slot: int
    size: int
    """Bytes."""


# Questions


@dataclass(frozen=True)
class BeginRound:
    """A round begins, its workers are not started yet. Answer: None."""

    ticket: int
    seat: Seat


@dataclass(frozen=True)
class Announce:
    """A worker wants slots for states of `capacity` bytes. Answer: the segment's number."""

    ticket: int
    local_rank: int
    capacity: int
    sharded: bool


@dataclass(frozen=True)
class Acquire:
    """A worker wants to stage that iteration. Answer: Granted, or None when there is no slot now and it does not
    wait."""

    ticket: int
    local_rank: int
    iteration: int
    waits: bool


@dataclass(frozen=True)
class Stage:
    """A worker has written `size` bytes into the slot it was granted. Answer: None."""

    ticket: int
    local_rank: int
    slot: int
    iteration: int
    size: int
    persist: bool
    thinned: str
    flaw: str
    """Why these bytes are no shard; empty for one."""


@dataclass(frozen=True)
class BuryWorker:
    """A worker has died. Answer: None."""

    ticket: int
    local_rank: int


@dataclass(frozen=True)
class AwaitStart:
    """A worker wants what the round begins from. Answer: Start, when it is there."""

    ticket: int
    local_rank: int


@dataclass(frozen=True)
class Flush:
    """Somebody wants an iteration of this round committed. Answer: the manifest's key; "" where nothing is put."""

    ticket: int
    local_rank: int
    iteration: int


@dataclass(frozen=True)
class PersistNewest:
    """The newest state of this round goes to the store. Answer: None, at once."""

    ticket: int


@dataclass(frozen=True)
class ListHoldings:
    """What can be served from this node's memory at `address`? Answer: Holdings, when their digests are known."""

    ticket: int
    address: str


@dataclass(frozen=True)
class KeepCopy:
    """A peer wants its shard copied into this node's memory. Answer: None, when it is held."""

    ticket: int
    source: Holding


@dataclass(frozen=True)
class Read:
    """A peer reads a shard until ReaderGone. Answer: Where, or None when it is not held."""

    ticket: int
    round: int
    iteration: int
    shard: int


Question = (
    BeginRound | Announce | Acquire | Stage | BuryWorker | AwaitStart | Flush | PersistNewest | ListHoldings | KeepCopy
    | Read
)  # fmt: skip

# Facts


@dataclass(frozen=True)
class ReaderGone:
    """Who had asked to read with that ticket reads no more."""

    ticket: int


@dataclass(frozen=True)
class Committed:
    """The master made the checkpoint visible."""

    identity: Identity
    manifest: str


@dataclass(frozen=True)
class Tick:
    """The time that `next_deadline` told has come."""


@dataclass(frozen=True)
class Close:
    """The node leaves: every wait ends, all memory goes."""


Fact = ReaderGone | Committed | Tick | Close

# Ends of works


@dataclass(frozen=True)
class Made:
    """The segment has its file."""

    segment: int


@dataclass(frozen=True)
class NotMade:
    """It cannot have one."""

    segment: int
    why: str


@dataclass(frozen=True)
class Allocated:
    """The first slot of the segment that had no memory has it now."""

    segment: int
    slot: int


@dataclass(frozen=True)
class NotAllocated:
    """It cannot have it."""

    segment: int
    why: str


@dataclass(frozen=True)
class Sealed:
    """The digest of a whole slot was computed."""

    work: int
    digest: str
    flaw: str = ""
    """Why it could not be: the bytes are no shard."""


@dataclass(frozen=True)
class Checked:
    """A whole slot was compared with its digest."""

    work: int
    flaw: str
    """What is wrong; empty when nothing is."""


@dataclass(frozen=True)
class Fetched:
    """The bytes of a shard have come into a slot and are right."""

    work: int


@dataclass(frozen=True)
class NotFetched:
    """They have not, or are not."""

    work: int
    refusal: Refusal


@dataclass(frozen=True)
class Put:
    """The store has an object, or why it has not."""

    work: int
    error: str


@dataclass(frozen=True)
class PeerAnswered:
    """A peer holds its copy, or why not."""

    work: int
    why: str
    silent: bool = False
    """It said nothing for too long."""


WorkEnd = Made | NotMade | Allocated | NotAllocated | Sealed | Checked | Fetched | NotFetched | Put | PeerAnswered
Event = Question | Fact | WorkEnd

# Answers


class Granted(NamedTuple):
    """A slot that may be written now."""

    where: Where
    waited_s: float
    """How long it was waited for while memory was still being allocated."""


class Start(NamedTuple):
    """What a round begins from, for one local rank or for all."""

    where: Where | None = None
    """None: nothing, or shards that another number of ranks cut."""
    round: int = 0
    iteration: int = 0
    digest: str = ""
    source: Holding | None = None
    """Where it came from; None: it was in this node's memory."""
    shards: tuple[Holding, ...] = ()
    """Of a sharded state: where every shard is held, best first."""
    why: str = ""
    """What was wrong at the places that come before the source."""


Holdings = tuple[Holding, ...]
Reply = int | str | Granted | Start | Where | Holdings | None

# Actions


@dataclass(frozen=True)
class Answer:
    """To a question."""

    ticket: int
    reply: Reply = None


@dataclass(frozen=True)
class Refuse:
    """A question, by KeeperError; `memory`: by SegmentError."""

    ticket: int
    why: str
    memory: bool = False


@dataclass(frozen=True)
class MakeSegment:
    """Make a file with slots that have no memory yet, if that and `copies` slots more can all be had. Ends: Made,
    NotMade."""

    segment: int
    name: str
    slots: int
    capacity: int
    copies: int


@dataclass(frozen=True)
class Allocate:
    """Give the next slot its memory. Ends: Allocated, NotAllocated."""

    segment: int


@dataclass(frozen=True)
class EndAllocation:
    """The segment gets no more memory."""

    segment: int


@dataclass(frozen=True)
class RemoveSegment:
    """Its file goes."""

    segment: int


@dataclass(frozen=True)
class Seal:
    """Compute the digests of a slot. End: Sealed."""

    work: int
    where: Where


@dataclass(frozen=True)
class Check:
    """Compare a slot with its digest. End: Checked."""

    work: int
    where: Where
    digest: str


@dataclass(frozen=True)
class Fetch:
    """Bring a shard into a slot. Ends: Fetched, NotFetched."""

    work: int
    where: Where
    source: Holding
    ticket: int | None = None
    """Whose question is to be told whenever bytes come (see GotOn)."""


@dataclass(frozen=True)
class PutObject:
    """Copy a slot to the store. End: Put."""

    work: int
    where: Where
    key: str
    iteration: int


@dataclass(frozen=True)
class AskPeer:
    """Have a peer fetch that shard. End: PeerAnswered."""

    work: int
    peer: str
    holding: Holding


@dataclass(frozen=True)
class TellPersisted:
    """Tell the master that the shard is in the store."""

    holding: Holding


@dataclass(frozen=True)
class TellUnrestored:
    """Tell the master that no source gives what the round begins from."""

    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class GotOn:
    """Tell who asked that the question is being worked on."""

    ticket: int


@dataclass(frozen=True)
class Warn:
    """A line for people."""

    text: str


Work = Allocate | Seal | Check | Fetch | PutObject | AskPeer
Action = (
    Work | Answer | Refuse | MakeSegment | EndAllocation | RemoveSegment | TellPersisted | TellUnrestored | GotOn | Warn
)
