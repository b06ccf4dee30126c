"""What an agent and its job's master say to each other: JSON bodies over HTTP, one Struct each.

Every request carries `Authorization: Bearer TOKEN` and, in `JOB_HEADER`, its job; it names the node. Every reply
carries the master's epoch: an agent refuses a reply of a lower epoch than it has seen. `PROTOCOL` is raised when a
field changes its meaning.

A message may come twice, late, or after one that was sent later. What makes such a copy recognisable:

- Join: (`life`, `number`) rises. An agent sends the next one only when one was answered, and the master answers only
  when it has journaled the number: so a copy of a join that was answered is never above the journaled one.
- Heartbeat: `number` rises, and `join` is that of the newest join: it never contradicts a seat that it cannot know.
- Leaving: `life`. WorkerExit and Finished: `round`; a node tells one of each a round. Dumped: `directive`.
- Persisted: the shard itself, which is stored once; what was deleted from the store is not stored again.
"""

from enum import StrEnum

import msgspec

PROTOCOL = 2
JOB_HEADER = "Everstep-Job"
"""Another job's master answers 409 to it, whatever is asked."""


class Holding(msgspec.Struct, frozen=True):
    """A whole staged shard that somebody can serve: in a node's memory (`node`) or in the store (`key`)."""

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
    """The local rank of that node whose segment holds it."""
    key: str = ""
    """Object in the store."""
    digest: str = ""
    """xxh3_128 of its head, which has the digests of its data, as 32 hex digits."""


class Flaw(StrEnum):
    """What is wrong with a source that a state was to be restored from."""

    DAMAGED = "damaged"
    """Proven: its bytes are not what they were, or are gone."""
    NEWER = "newer"
    """A later Everstep wrote it."""
    UNREACHABLE = "unreachable"
    """It does not answer; it may be whole."""


class Refusal(msgspec.Struct, frozen=True):
    """Sources of a state that no round begins from any more: objects, a node's memory, or (neither) all there are."""

    round: int
    iteration: int
    why: str
    flaw: Flaw = Flaw.DAMAGED
    key: str = ""
    """Objects in the store whose key begins so."""
    node: str = ""
    """The memory of that node,"""
    shard: int = 0
    """this shard in it."""

    def covers(self, held: Holding) -> bool:
        """Is it that source?"""
        if (held.round, held.iteration) != (self.round, self.iteration):
            return False
        if self.key:
            return bool(held.key) and held.key.startswith(self.key)
        return not self.node or (held.node, held.shard) == (self.node, self.shard)


class Restore(msgspec.Struct, frozen=True):
    """The one state that a round starts from, and for each shard the places to read it, best first.

    `sources` is the same for every node; a node that holds a shard itself reads its own memory first.
    """

    round: int
    iteration: int
    sources: tuple[Holding, ...]
    reason: str


class Member(msgspec.Struct, frozen=True):
    """A node's place in a round."""

    node: str
    host: str
    address: str
    slots: int
    ip: str = ""
    """As the agent told it; empty where it told none."""


class Round(msgspec.Struct, frozen=True):
    """One agreed membership: members per role, in rank order. A new round restarts the workers."""

    number: int
    members: dict[str, tuple[Member, ...]]
    master_addr: str
    master_port: int
    restore: Restore | None
    reason: str


class Join(msgspec.Struct, frozen=True):
    """POST /v1/join: an agent asks to be in the next round. Answered with a Seat, or 204 after the long poll."""

    node: str
    role: str
    host: str
    slots: int
    address: str
    """host:port of the agent's own server."""
    master_port: int
    """A port that is free on this host for torch's rendezvous, should this node get rank 0."""
    holdings: tuple[Holding, ...] = ()
    after_round: int = 0
    """The last round this agent was in: it wants a later one."""
    protocol: int = PROTOCOL
    checked: float = 0.0
    """Seconds that its own node check took; 0: it made none."""
    ip: str = ""
    """Address of this host in the cluster's network, as the job's topology names it; empty: unknown."""
    index: int = -1
    """The place it asks for in its role (its NODE_RANK); -1: any. Only heeded where nodes come by themselves."""
    life: int = 0
    """Which agent of this node asks: rises from one to the next. The Unix time in ms at which it began, or more, where
    the master knew of a higher one."""
    number: int = 1
    """Of this agent's joins, from 1."""


class Seat(msgspec.Struct, frozen=True):
    """Where a node sits in a round: all that it needs to start its workers."""

    epoch: int
    round: int
    role: str
    group_rank: int
    group_world_size: int
    first_rank: int
    """Global rank of this node's first worker; the others follow."""
    world_size: int
    role_first_rank: int
    role_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    """Rounds of this job before this one."""
    restore: Restore | None
    persists: bool
    """This node persists what is the same on every rank; each node persists its own shards of a sharded state."""
    peer: str = ""
    """host:port of the agent that keeps copies of this node's shards, on another host; empty: there is none."""


class Action(StrEnum):
    """What the master tells an agent to do next."""

    CONTINUE = "continue"
    REJOIN = "rejoin"
    """The round is over: kill the workers and join again."""
    LEAVE = "leave"
    """End the workers, release everything, exit 0."""
    DUMP = "dump"
    """Write the stacks of all ranks of this node to its log, then tell (Dumped); the workers are left as they are."""
    PERSIST = "persist"
    """Put the newest staged state of this node into the store now and tell (Persisted); the training goes on."""


class Heartbeat(msgspec.Struct, frozen=True):
    """POST /v1/heartbeat: a long poll. Answered at once when there is something to do, else when it ends."""

    node: str
    round: int
    iteration: int = 0
    phase: str = ""
    telemetry: tuple[dict[str, float | int | str], ...] = ()
    """What the workers reported since the last heartbeat, each with v, n, time, round, iteration, rank; `n` rises."""
    seen: int = 0
    """The last `Directive.number` this agent carried out."""
    still_s: float = 0.0
    """Seconds since any of this node's workers moved; before the first movement, since they were told to start."""
    moved: bool = False
    """Has any of them moved in this round?"""
    has_beacon: bool = False
    """Is their script known to show movements at all?"""
    life: int = 0
    number: int = 0
    """Of this agent's heartbeats, from 1; 0: not told."""
    join: int = 0
    """The number of the newest join it has made."""
    waits: bool = False
    """That join is not answered yet: the workers of `round` are dead, or about to die."""


class Directive(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    epoch: int
    number: int
    action: Action
    reason: str = ""
    round: int = 0
    """The round that REJOIN ends: an agent that has a seat in a later one ignores it."""
    stored: int = 0
    """The newest `n` of this node's telemetry that lies in the store: the agent keeps what came later."""
    life: int = 0
    """Above the agent's own: the master takes another one for this node's, until this one joins with a higher life."""


class WorkerExit(msgspec.Struct, frozen=True):
    """POST /v1/fault: a worker of this node died otherwise than by finishing."""

    node: str
    round: int
    rank: int
    local_rank: int
    exit_code: int
    """As subprocess has it: negative for a signal."""
    iteration: int
    error: str = ""
    """The traceback or last words, at most 16 KiB."""
    ago_s: float = 0.0
    """Seconds from the death until this is sent: hosts' clocks differ, and the first to fail is to be found."""
    oom: bool = False
    """The agent saw the cgroup count a kill for want of memory at this death."""


class Finished(msgspec.Struct, frozen=True):
    """POST /v1/finished: all workers of this node ended the round with exit 0."""

    node: str
    round: int


class Leaving(msgspec.Struct, frozen=True):
    """POST /v1/leaving: this node will go soon (a preemption notice, SIGTERM). It trains on until told to leave."""

    node: str
    reason: str
    grace_s: float
    """Seconds until it ends by itself; from when the message is sent."""
    life: int = 0


class Dumped(msgspec.Struct, frozen=True):
    """POST /v1/dumped: the stacks of all ranks of this node are in its log, as DUMP asked."""

    node: str
    round: int
    directive: int = 0
    """The number of the one that asked."""


class Persisted(msgspec.Struct, frozen=True):
    """POST /v1/persisted: a shard lies whole in the store. Answered when the master has journaled it."""

    node: str
    holding: Holding


class Unrestored(msgspec.Struct, frozen=True):
    """POST /v1/unrestored: what the round begins from cannot be had on this node from any of its sources."""

    node: str
    round: int
    refusals: tuple[Refusal, ...]
    """At least one of each source that was tried."""


class Scale(msgspec.Struct, frozen=True):
    """POST /v1/scale: so many nodes of this role, within the bounds of the job's spec."""

    nodes: int
    role: str = "worker"


class Ack(msgspec.Struct, frozen=True):
    """The answer to what needs none."""

    epoch: int
    committed: str = ""
    """To Persisted: the key of the checkpoint's manifest, once it is visible. While other shards are missing the
    answer waits some seconds and may then be empty: post the same again to wait on."""
