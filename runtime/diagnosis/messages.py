"""Messages between a node and the coordinator of its check: one Struct each, JSON over HTTP.

POST /v1/check/arrive, /v1/check/order (a long poll), /v1/check/told.
"""

from enum import StrEnum

import msgspec

from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.verdicts import Verdict


class Stage(StrEnum):
    """The two halves of a node's work in a round."""

    ALONE = "alone"
    TOGETHER = "together"


class Arrive(msgspec.Struct, frozen=True):
    """A node is ready to be checked."""

    node: str
    host: str
    address: str
    """IP address at which other nodes reach this node."""


class Ask(msgspec.Struct, frozen=True):
    """A request for orders. The answer is an Order whose number is above `seen`, or 204 after the long poll."""

    node: str
    seen: int = 0


class StageResult(msgspec.Struct, frozen=True):
    """What a node measured in one half of a round, or how it died there."""

    node: str
    round: int
    stage: Stage
    measurement: Measurement
    store: str = ""
    """host:port of the group's store, if this node opened it (rank 0, when it has worked alone)."""


class Work(msgspec.Struct, frozen=True, tag=True):
    """Do the work that needs no partner, report it, and wait. Work for an earlier round ends."""

    number: int
    round: int
    opens_store: bool
    """This node has rank 0 in its group."""
    timeout_s: float
    """For all of it."""


class Together(msgspec.Struct, frozen=True, tag=True):
    """Every member of the group can work alone: do the all-reduce."""

    number: int
    round: int
    rank: int
    world: int
    store: str
    timeout_s: float
    """For each wait on the group."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The round is over for this node: end its work."""

    number: int
    round: int
    reason: str


class Over(msgspec.Struct, frozen=True, tag=True):
    """The check is over: the verdict on this node, and the names of others."""

    number: int
    verdict: Verdict
    faulty: tuple[str, ...] = ()
    stragglers: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    usable: int = 0
    """Number of nodes that need not be avoided."""


Order = Work | Together | Stop | Over
