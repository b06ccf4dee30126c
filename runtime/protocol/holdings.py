"""Where the shards of a state can be read, and which sources are refused."""

from enum import StrEnum
from typing import Annotated

import msgspec


class Holding(msgspec.Struct, frozen=True):
    """A complete shard and where it can be read: from a node's memory (`node`) or from the store (`key`)."""

    round: int
    iteration: int
    shard: int = 0
    shards: int = 1
    size: int = 0
    """Bytes of the safetensors file."""
    node: str = ""
    address: str = ""
    """host:port of the agent that serves it from memory."""
    index: int = 0
    """The local rank, on that node, whose segment holds it."""
    key: str = ""
    """Object in the store."""
    digest: str = ""
    """xxh3_128 of its header, as 32 hex digits; the header holds the digests of the data."""


class CopyRequest(msgspec.Struct, frozen=True):
    """A node asks a peer to keep a copy of its shard."""

    source: Holding
    copies: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How many peers are asked for one. Each keeps the newest complete copy, and of several the two newest."""


class Tier(StrEnum):
    """From where a state is restored; nearest first."""

    MEMORY = "memory"
    """Of the rank's own node."""
    PEER = "peer"
    """The memory of another node."""
    STORE = "store"
    SHARDS = "shards"
    """It was saved by another number of ranks: parts of several shards, from wherever these are."""


class Flaw(StrEnum):
    """What is wrong with a source of a restore."""

    DAMAGED = "damaged"
    """Proven: its bytes have changed or are gone."""
    NEWER = "newer"
    """A later version of Everstep wrote it."""
    UNREACHABLE = "unreachable"
    """It does not answer; it may be intact."""


class Refusal(msgspec.Struct, frozen=True):
    """Sources that no later round restores from: objects, one node's memory, or, with neither named, all sources."""

    round: int
    iteration: int
    why: str
    flaw: Flaw = Flaw.DAMAGED
    key: str = ""
    """Prefix of the objects' keys in the store."""
    node: str = ""
    """The node whose memory is meant."""
    shard: int = 0
    """The shard in that node's memory."""

    def covers(self, source: Holding) -> bool:
        """Whether this refusal covers that source."""
        if (source.round, source.iteration) != (self.round, self.iteration):
            return False
        if self.key:
            return bool(source.key) and source.key.startswith(self.key)
        return not self.node or (source.node, source.shard) == (self.node, self.shard)


class Restore(msgspec.Struct, frozen=True):
    """The state that a round starts from. `sources` lists where each shard can be read, best first.

    Every node gets the same `sources`; a node that holds a shard itself reads its own memory first.
    """

    round: int
    iteration: int
    sources: tuple[Holding, ...]
    reason: str
