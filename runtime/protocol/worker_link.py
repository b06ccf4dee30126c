"""The messages between a worker and its node's agent: JSON lines over a Unix socket in the node's private folder.

`Link` is the worker's side: blocking, standard library and msgspec only. EVERSTEP_AGENT holds the socket's path. A
worker that never connects still runs, but has no beacon and no checkpoints.
"""

import math
import os
import socket
import time
from contextlib import suppress
from typing import TypeVar

import msgspec

from everstep.runtime.protocol.holdings import Holding, Refusal, Tier

AGENT_VARIABLE = "EVERSTEP_AGENT"
LOCAL_RANK_VARIABLE = "EVERSTEP_LOCAL_RANK"
"""The worker's local rank if LOCAL_RANK is virtual."""


_ROUND_ENDS_S = 60.0
"""The agent hangs up when a round is over, and kills its workers right then."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First line of every connection. Answer: Welcome."""

    pid: int
    rank: int
    local_rank: int
    round: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The agent knows this worker."""

    job: str
    store: str
    """URI of the store."""
    path: str = ""
    offset: int = 0
    size: int = 0
    """The range in shared memory where this worker's restored state will be if its bytes are verified, which `Fetched`
    decides. Empty while this is unknown."""
    certifies: bool = False
    """States are compared across the nodes: the agent reports a loss that is not sound, and the master steps back."""
    skips: tuple[int, ...] = ()
    """Iterations that are skipped."""
    replays: int = 0
    """Iterations between two whose gradients another rank computes again; 0: none is."""
    peer_copies: int = 1
    """Copies of this rank's own shard that other nodes' memory is to keep."""


class Announce(msgspec.Struct, frozen=True, tag=True):
    """The worker's state needs `capacity` bytes per slot. Answer: Segment."""

    capacity: int
    sharded: bool = False
    """The worker stages its rank's shard of the state; otherwise the state is the same on every rank."""


class Segment(msgspec.Struct, frozen=True, tag=True):
    """The shared memory file of this worker: a control page, then `slots` slots of `capacity` bytes."""

    path: str
    slots: int
    capacity: int
    overhead: float = 0.0
    """The fraction of training time that staging may take; 0: no limit."""
    copies: int = 0
    """Slots of the same capacity that copies of other nodes' shards may need in this node's memory, if the worker
    stages its own shard."""


class Acquire(msgspec.Struct, frozen=True, tag=True):
    """The worker wants to stage `iteration`. Answer: Slot, as soon as a slot may be overwritten."""

    iteration: int


class Slot(msgspec.Struct, frozen=True, tag=True):
    """Write at most `capacity` bytes at `offset` of the segment."""

    slot: int
    offset: int
    waited_s: float
    """Seconds spent waiting while memory was still being allocated; no later save waits for that again."""


class Staged(msgspec.Struct, frozen=True, tag=True):
    """The commit of a stage: `size` bytes of safetensors in `slot` are complete. Answer: Done. Training does not wait
    for it: an error is raised at the next request."""

    slot: int
    iteration: int
    size: int
    persist: bool
    """Copy it to the store now, whatever the interval says."""
    thinned: str = ""
    """Why not every iteration is staged; empty while every one is."""


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Wait until `iteration` is committed in the store. Answer: Done with its manifest key, or Problem."""

    iteration: int


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Ask for the state that this round starts from. Answer: Fetched, once its verified bytes are in this node's
    memory."""


class Fetched(msgspec.Struct, frozen=True, tag=True):
    """Read `size` bytes at `offset` of `path`.

    `path` is empty if the round starts from nothing (`iteration` 0), or if the state was sharded over another number of
    ranks: then the worker reads the parts it needs from `sources`.
    """

    path: str
    offset: int
    size: int
    round: int
    iteration: int
    digest: str
    """Digest of those bytes, which the agent has compared with it."""
    tier: Tier | None
    """None: the round starts from nothing."""
    source: str = ""
    """The source in words: memory | peer NODE | store KEY | N shards"""
    sources: tuple[Holding, ...] = ()
    """For a sharded state: where every shard can be read, best first."""
    token: str = ""
    """The bearer token that peers require."""
    authority: str = ""
    """The certificate authority of the peers, PEM; empty: they do not use TLS."""
    why: str = ""
    """Why the sources preferred over `source` failed; empty if none failed."""


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """The fetched state is invalid or incomplete: the master begins another round. There is no answer."""

    refusals: tuple[Refusal, ...]


class TakeShard(msgspec.Struct, frozen=True, tag=True):
    """Ask for the next position of a queue of data shards, and report the last one: the fields of ShardRequest.
    Answer: TakenShard, when there is one to do or all are done."""

    number: int
    queue: str
    size: int
    done: int
    iteration: int
    wants: bool


class TakenShard(msgspec.Struct, frozen=True, tag=True):
    """Do this position; -1: all are done."""

    position: int


class Report(msgspec.Struct, frozen=True, tag=True):
    """Telemetry of one iteration: metric names and values. No answer."""

    iteration: int
    values: dict[str, float | int | str]


class ReplayDiffers(msgspec.Struct, frozen=True, tag=True):
    """Another rank computed an iteration's gradients again and got others. Its state is not staged yet. No answer."""

    iteration: int
    detail: str
    """What differs, in one line."""
    wrong_ranks: tuple[int, ...] = ()
    """Those whose result differs from that of two others."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request was carried out."""

    detail: str = ""


class Problem(msgspec.Struct, frozen=True, tag=True):
    """The request failed. `message` is one line: why, and how to fix it."""

    message: str


Request = Hello | Announce | Acquire | Staged | Flush | Fetch | Unusable | TakeShard | Report | ReplayDiffers
Reply = Welcome | Segment | Slot | Fetched | TakenShard | Done | Problem

_reply = msgspec.json.Decoder(Reply)
_encode = msgspec.json.Encoder().encode
R = TypeVar("R")


def _json_value(value: float | int | str) -> float | int | str:
    """The value as JSON can carry it: nan and inf become text, which float() parses."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class LinkError(ConnectionError):
    """The agent is gone, or refused the request."""


class Link:
    """A worker's connection to its agent. Not thread-safe: use one Link per thread."""

    def __init__(self, path: str, hello: Hello) -> None:
        self._path, self._hello = path, hello
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")
        self._unread = 0
        """Answers that have not been read yet."""
        self.welcome = self.ask(hello, Welcome)

    @classmethod
    def from_environment(cls) -> "Link | None":
        """The link of this worker, or None if no agent started it."""
        path = os.environ.get(AGENT_VARIABLE)
        if not path:
            return None
        local_rank = os.environ.get(LOCAL_RANK_VARIABLE) or os.environ["LOCAL_RANK"]
        rank, round_ = int(os.environ["RANK"]), int(os.environ["EVERSTEP_ROUND"])
        return cls(path, Hello(os.getpid(), rank, int(local_rank), round_))

    @property
    def local_rank(self) -> int:
        """The worker's number on its node, from 0, also if LOCAL_RANK is virtual."""
        return self._hello.local_rank

    def another(self) -> "Link":
        """Another connection of the same worker, for another thread. Raises LinkError, OSError."""
        return Link(self._path, self._hello)

    def tell(self, request: Request) -> None:
        """Send without waiting for an answer. Report and ReplayDiffers have none; that to Staged is read with the next
        one."""
        if isinstance(request, Report):
            request = msgspec.structs.replace(request, values={k: _json_value(v) for k, v in request.values.items()})
        elif not isinstance(request, ReplayDiffers):
            self._unread += 1
        self._socket.sendall(_encode(request) + b"\n")

    def ask(self, request: Request, answer: type[R]) -> R:
        """Send and wait for the answer of that type. Raises LinkError for a Problem (also one that answers an earlier
        `tell`) and if the agent is gone."""
        self.tell(request)
        return self.read_answer(answer)

    def refuse_restore(self, refusals: tuple[Refusal, ...]) -> None:
        """Report that the round cannot be restored, and wait for its end, which kills this process. Returns if the end
        does not come in time."""
        with suppress(LinkError, OSError):
            self.ask(Unusable(refusals), Done)
        time.sleep(_ROUND_ENDS_S)

    def read_answer(self, answer: type[R]) -> R:
        """Wait for the answer to the last `tell`; raises as `ask` does."""
        *_, reply = replies = [self._read_reply() for _ in range(self._unread)]
        self._unread = 0
        for problem in replies:
            if isinstance(problem, Problem):
                raise LinkError(problem.message)
        if not isinstance(reply, answer):
            raise LinkError(f"expected {answer.__name__}, the agent answered {type(reply).__name__}")
        return reply

    def _read_reply(self) -> Reply:
        if line := self._lines.readline():
            return _reply.decode(line)
        raise LinkError("the agent of this node is gone")

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()
