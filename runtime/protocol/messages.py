"""The messages between an agent and its job's master: JSON bodies over HTTP, one Struct each.

Every request carries `Authorization: Bearer TOKEN`, names its job in `JOB_HEADER`, and names its node. Every reply
carries the master's epoch: an agent rejects a reply whose epoch is lower than the highest it has seen. `PROTOCOL`
rises when a field changes its meaning.

A message may arrive twice, late, or out of order. These fields identify a duplicate:

- Join: (`life`, `number`) rises. An agent sends the next join only after an answer, and the master answers only after
  it has journaled the number. Invariant: a duplicate of an answered join is never above the journaled number.
- Heartbeat: `number` rises, and `join` is the number of the newest join. A heartbeat therefore cannot contradict a
  seat that the agent does not know yet. A line of its telemetry: (`life`, `n`) rises.
- Leaving: `life`. WorkerExit, Finished and SelfTest: `round`; a node sends one of each per round. Dumped: `directive`.
- Disconnected: `round`. Each node sends one; the first ends the round, and the others change nothing.
- ShardRequest: (`round`, `number`) rises for each worker and queue.
- Persisted: the shard itself. It is stored once; a shard that was deleted from the store is not stored again.
"""

from enum import StrEnum

import msgspec

from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.watch.hang_culprit import Standing
from everstep.runtime.watch.slow_ranks import Pace

PROTOCOL = 2
MASTER_NAME = "master"
"""What a master answers to GET /v1/alive, where agents answer their node's name."""
JOB_HEADER = "Everstep-Job"
"""The master of another job answers 409 to every request that carries it."""


class Join(msgspec.Struct, frozen=True):
    """POST /v1/join: an agent asks to be in the next round. Answered with a Seat, or 204 after the long poll."""

    node: str
    role: str
    host: str
    slots: int
    address: str
    """host:port of the agent's own server."""
    master_port: int
    """A free port on this host for torch's rendezvous, in case this node gets rank 0."""
    holdings: tuple[Holding, ...] = ()
    after_round: int = 0
    """The last round this agent was in; it asks for a later one."""
    protocol: int = PROTOCOL
    checked: float = 0.0
    """Seconds that its own node check took; 0: no check was made."""
    prepared: float = 0.0
    """Seconds in which the agent got ready to start workers before it joined: it imported what the script imports, and
    warmed its spares. The check runs beside them."""
    ip: str = ""
    """Address of this host in the cluster's network, as the job's topology names it; empty: unknown."""
    zone: str = ""
    """The failure domain of this host: on a cluster its label topology.kubernetes.io/zone; empty: unknown."""
    index: int = -1
    """The index it asks for in its role (its NODE_RANK); -1: any. Used only with placement `joined`."""
    life: int = 0
    """Identifies the agent process among those of this node; each later one is higher. The Unix time in ms at which it
    started, or a higher number if the master already knew a higher one."""
    number: int = 1
    """Counts this agent's joins, from 1."""


class Action(StrEnum):
    """What the master tells an agent to do next."""

    CONTINUE = "continue"
    REJOIN = "rejoin"
    """The round is over: kill the workers and join again."""
    LEAVE = "leave"
    """End the workers, release everything, exit 0."""
    DUMP = "dump"
    """Write the stacks of all ranks of this node to its log, then report Dumped; the workers are left running."""
    PERSIST = "persist"
    """Write the newest staged state of this node to the store now and report Persisted; training goes on."""
    CHECK = "check"
    """Test this node's processors and devices, at most for some seconds, then report SelfTest."""


class Heartbeat(msgspec.Struct, frozen=True):
    """POST /v1/heartbeat: a long poll. Answered at once if there is something to do, or if this master has not answered
    the node before: then it knows that there is a new master. Otherwise when the poll ends."""

    node: str
    round: int
    iteration: int = 0
    phase: str = ""
    telemetry: tuple[dict[str, float | int | str], ...] = ()
    """Lines the workers reported since the last heartbeat, each with v, n, time, round, iteration, rank; `n` rises."""
    seen: int = 0
    """The `Directive.number` that this agent carried out last."""
    still_s: float = 0.0
    """Seconds since any of this node's workers made progress; before the first progress, since they were started."""
    moved: bool = False
    """Whether any of them has made progress in this round."""
    has_beacon: bool = False
    """Whether their script is known to show progress at all."""
    pace_s: float = 0.0
    """The median of the newest iterations of the node's slowest worker, in seconds; 0: not known."""
    is_working: bool = False
    """The workers show no beacon of their own, compute, and wait for no other rank."""
    blocked_s: float = 0.0
    """Before the first progress: for how long neither a worker nor a process that it started has used CPU or disk."""
    awaits: bool = False
    """Some worker waits for other ranks, in a collective or for a process group."""
    survives: bool = False
    """Its workers can leave the round, and be seated again in a later one."""
    paces: tuple[Pace, ...] = ()
    """The times of each rank over the window that has just ended; empty in other heartbeats."""
    silent: tuple[str, ...] = ()
    """Neighbours in `round` that answer neither this agent nor those through which it asked them."""
    silent_s: float = 0.0
    """For at least this many seconds."""
    life: int = 0
    number: int = 0
    """Counts this agent's heartbeats, from 1; 0: not given."""
    join: int = 0
    """The number of its newest join."""
    waits: bool = False
    """That join is not answered yet: the workers of `round` are dead or about to die."""


FINISH_S = 10.0
"""How long workers may take, at most, to end their iteration when a round ends that has lost no rank. They train
meanwhile."""


class Directive(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    epoch: int
    number: int
    action: Action
    reason: str = ""
    round: int = 0
    """The round that REJOIN ends: an agent with a seat in a later round ignores it."""
    ends_iteration: bool = False
    """REJOIN: no rank is lost, so workers that can leave a round end their iteration first."""
    stored: int = 0
    """The newest `n` of this node's telemetry that is in the store: the agent keeps later lines."""
    life: int = 0
    """If above the agent's own, the master takes another agent for this node's until this one joins with a higher
    life."""


class WorkerExit(msgspec.Struct, frozen=True):
    """POST /v1/fault: a worker of this node died without finishing."""

    node: str
    round: int
    rank: int
    local_rank: int
    exit_code: int
    """As in subprocess: negative for a signal."""
    iteration: int
    error: str = ""
    """The traceback or the end of its output, at most 16 KiB."""
    ago_s: float = 0.0
    """Seconds from the death until this is sent. Clocks of hosts differ, and the master must find the first failure."""
    oom: bool = False
    """The cgroup counted an OOM kill at this death."""
    kernel: tuple[str, ...] = ()
    """What the kernel said about that time."""
    failed: tuple[int, ...] = ()
    """The ranks of its node that had failed by then with errors of their own, in order; echoes of others do not count.
    Empty: all were echoes, or it is not known."""


class Disconnected(msgspec.Struct, frozen=True):
    """POST /v1/disconnected: a worker of this node lives, but its connection to another rank has failed, and nobody
    told it why. It waits for the end of the round."""

    node: str
    round: int
    rank: int
    iteration: int
    error: str
    """In one line."""


class Finished(msgspec.Struct, frozen=True):
    """POST /v1/finished: all workers of this node ended the round with exit code 0."""

    node: str
    round: int


class Leaving(msgspec.Struct, frozen=True):
    """POST /v1/leaving: this node must leave soon (a preemption notice, SIGTERM). It trains on until told to leave."""

    node: str
    reason: str
    grace_s: float
    """Seconds from sending the message until the node ends by itself."""
    life: int = 0


class Dumped(msgspec.Struct, frozen=True):
    """POST /v1/dumped: the stacks of all ranks of this node are in its log, as DUMP asked."""

    node: str
    round: int
    directive: int = 0
    """The number of the directive that asked."""
    standings: tuple[Standing, ...] = ()
    """Where its ranks stand."""


class SelfTest(msgspec.Struct, frozen=True):
    """POST /v1/tested: this node has tested itself, as CHECK asked."""

    node: str
    round: int
    """The round of the directive that asked."""
    seconds: float
    problem: str = ""
    """The device that is unfit, and why; empty: it is fit, or could not be tested."""


class Persisted(msgspec.Struct, frozen=True):
    """POST /v1/persisted: a complete shard is in the store. Answered once the master has journaled it."""

    node: str
    holding: Holding


class Evidence(msgspec.Struct, frozen=True):
    """POST /v1/evidence: what this node knows of a state that it staged, for comparison with what others know.
    Answered once the master has compared it, or after the long poll; then post the same message again."""

    node: str
    round: int
    iteration: int
    shard: int = 0
    shards: int = 1
    layout: str = ""
    """Digest of the names, types, shapes and offsets of its tensors: replicas have the same."""
    digest: str = ""
    """Digest of the bytes of its tensors: sound replicas have the same."""
    doubt: str = ""
    """Why the state cannot be sound, whatever the others have: its loss was not finite."""
    replay: str = ""
    """Why the state cannot be sound: how its last iteration came out on another rank."""
    wrong_ranks: tuple[int, ...] = ()
    """For `replay`: the ranks whose result differs from that of two others."""

    @property
    def is_against(self) -> bool:
        """Does it speak against the state, whatever the others have?"""
        return bool(self.doubt or self.replay)


class Unrestored(msgspec.Struct, frozen=True):
    """POST /v1/unrestored: this node could not read the state that the round starts from, from any source."""

    node: str
    round: int
    refusals: tuple[Refusal, ...]
    """At least one for each source that was tried."""


class Scale(msgspec.Struct, frozen=True):
    """POST /v1/scale: set the number of nodes of this role, within the bounds of the job's spec."""

    nodes: int
    role: str = "worker"
    timeout_s: float = 0.0
    """New nodes that have not joined for this long are given up; 0: the role's `scale_out_timeout_s`."""


class ShardRequest(msgspec.Struct, frozen=True):
    """POST /v1/shard: a worker asks for the next position of a queue of data shards. Answered with ShardLease, or 204
    after the long poll: all is done or being done; post the same message again to go on waiting."""

    node: str
    local_rank: int
    round: int
    number: int
    """Counts the worker's requests to this queue in this round, from 1."""
    queue: str
    size: int
    """Positions in the queue: every worker must say the same."""
    done: int = -1
    """The position that it has done; -1: none. If it was doing another, it gives that back."""
    iteration: int = 0
    """The first iteration whose saved state includes what was done; 0: no checkpoint does."""
    wants: bool = True
    """False: it only reports."""


class ShardLease(msgspec.Struct, frozen=True):
    """The answer to a ShardRequest."""

    epoch: int
    position: int
    """-1: all is done."""
    problem: str = ""
    """Why the request makes no sense, in one line."""


class Ack(msgspec.Struct, frozen=True):
    """The answer to a request that only needs confirmation."""

    epoch: int
    committed: str = ""
    """For Persisted: the key of the checkpoint's manifest, once it is visible. While other shards are missing, the
    answer waits some seconds and may then be empty: post the same message again to go on waiting."""
    is_overtaken: bool = False
    """For Persisted: the checkpoint was deleted, as newer ones are there; it will not be committed."""
    is_certified: bool = False
    """For Evidence: the state is certified."""
