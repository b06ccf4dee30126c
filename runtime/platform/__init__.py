"""Where nodes come from, behind one Protocol: processes of this machine (`process`), or pods (`kubernetes`).

The story begins in `process`; `registry` is what outlives a master,
`limits` what a node may use, `debris` what a dead one leaves, `gang` how pods may come together. The master compares
what it wants with `observe()` and calls `create` and `delete`; both may be repeated without harm.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from everstep.runtime.job.spec import Resources


class NodeRequest(msgspec.Struct, frozen=True):
    """A node that the master wants. The name is deterministic: a second create of it does nothing."""

    name: str
    role: str
    host: str
    """Where it shall run; empty: anywhere. Locally `local-0`, `local-1`..."""
    environment: Mapping[str, str]
    """EVERSTEP_JOB, EVERSTEP_JOB_TOKEN, EVERSTEP_MASTER...; never written into a command line."""
    arguments: Sequence[str]
    """For `python -m everstep.runtime.agent`."""
    resources: Resources = Resources()
    """What it may use at most; what a platform cannot limit it says once."""
    priority: int = 0
    """The master asks for nodes with a higher one first; a platform need do no more about it."""
    extra: bool = False
    """Beyond the minimum of its role: the first to go when the machines have not enough for all."""
    avoid_hosts: Sequence[str] = ()
    """Names of machines that it must not run on."""


class Node(msgspec.Struct, frozen=True):
    """A node that exists."""

    name: str
    uid: str
    """Tells this incarnation from a later one of the same name (locally pid and start time)."""
    role: str
    host: str


class NodeEnd(msgspec.Struct, frozen=True):
    """A node ceased to exist."""

    name: str
    uid: str
    exit_code: int | None
    """None where nobody can know it (adopted nodes)."""
    reason: str
    gave_way: bool = False
    """Somebody more important got its place, or its machine was emptied: nobody's fault."""


class Platform(Protocol):
    """A maker of nodes for one job."""

    async def observe(self) -> list[Node]:
        """The job's nodes that exist now, also those an earlier master made."""
        ...

    async def create(self, request: NodeRequest) -> Node:
        """Make the node, or return it when it exists."""
        ...

    async def delete(self, name: str, uid: str) -> None:
        """End that incarnation with everything it started and held (workers, shared memory). Idempotent."""
        ...

    def node_ends(self) -> AsyncIterator[NodeEnd]:
        """Yields as soon as a node that `observe` or `create` returned is gone."""
        ...
