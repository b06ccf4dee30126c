"""Where nodes come from, behind one Protocol: processes of this machine (`process`), or pods (`kubernetes`).

The story begins in `process`. `registry` is what outlives a master, `limits` what a node may use, `debris` what a dead
node leaves behind, `gang` how pods may be scheduled together, `self_joining` a platform whose nodes come by
themselves. The master compares what it wants with `observe()` and calls `create` and `delete`; both are idempotent.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from everstep.runtime.job.spec import Resources

POD_VARIABLE = "EVERSTEP_POD"
"""Variable with the name of a step's own pod. Unset: nodes are processes of this machine."""
STEP_LABEL = "everstep/step"
"""Label of a step's template and pod; its value is the step's name. Such pods reach each other
(templates/chart/files/network.yaml) and the store."""


class NodeRequest(msgspec.Struct, frozen=True):
    """A node that the master wants. The name is deterministic, so a second create of it does nothing."""

    name: str
    role: str
    host: str
    """Where the node must run; empty: anywhere. Locally `local-0`, `local-1`..."""
    environment: Mapping[str, str]
    """EVERSTEP_JOB, EVERSTEP_JOB_TOKEN, EVERSTEP_MASTER...; never written into a command line."""
    arguments: Sequence[str]
    """For `python -m everstep.runtime.agent`."""
    resources: Resources = Resources()
    """Upper limits; a platform says once which of them it cannot enforce."""
    priority: int = 0
    """The master asks for nodes with a higher priority first; a platform need not do more about it."""
    extra: bool = False
    """Beyond the minimum of its role: the first to go when resources are short."""
    avoid_hosts: Sequence[str] = ()
    """Machines that it must not run on."""
    not_on: str = ""
    """A machine that it had better not run on; empty: none."""
    prefer_hosts: Sequence[str] = ()
    """Machines that it had better run on."""
    workers: tuple[int, int] = (0, 0)
    """The first of its workers among the job's when every role has its most nodes, and how many it has: nodes that
    share a machine divide its devices by it."""


class Node(msgspec.Struct, frozen=True):
    """A node that exists."""

    name: str
    uid: str
    """Distinguishes this incarnation from a later one of the same name (locally: pid and start time)."""
    role: str
    host: str


class NodeEnd(msgspec.Struct, frozen=True):
    """A node has ceased to exist."""

    name: str
    uid: str
    exit_code: int | None
    """None if it cannot be known (adopted nodes)."""
    reason: str
    gave_way: bool = False
    """A more important pod took its place, or its machine was drained: nobody's fault."""


class Platform(Protocol):
    """Creates and deletes the nodes of one job."""

    async def observe(self) -> list[Node]:
        """The job's existing nodes, including those that an earlier master created."""
        ...

    async def create(self, request: NodeRequest) -> Node:
        """Create the node, or return it if it exists."""
        ...

    async def delete(self, name: str, uid: str) -> None:
        """End that incarnation with everything it started and held (workers, shared memory). Idempotent."""
        ...

    def node_ends(self) -> AsyncIterator[NodeEnd]:
        """Yields as soon as a node that `observe` or `create` returned is gone."""
        ...
