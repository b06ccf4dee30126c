"""What a worker says to the agent of its node: JSON lines over a Unix socket, in the node's private folder.

The worker's side is `Link` (blocking, a few lines, standard library + msgspec). The socket's path is in
EVERSTEP_AGENT. A worker that never connects still runs: it only has no beacon and no checkpoints.
"""

import math
import os
import socket
import time
from contextlib import suppress
from typing import TypeVar

import msgspec

from everstep.runtime.protocol.messages import Holding, Refusal

AGENT_VARIABLE = "EVERSTEP_AGENT"
LOCAL_RANK_VARIABLE = "EVERSTEP_LOCAL_RANK"
"""The worker's number on its node, where LOCAL_RANK is a virtual one."""


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
    """Where in shared memory this worker's start will be, if its bytes are right: `Fetched` decides; empty while nobody
    knows."""


class Announce(msgspec.Struct, frozen=True, tag=True):
    """The worker's state needs `capacity` bytes a slot. Answer: Segment."""

    capacity: int
    sharded: bool = False
    """It is this rank's shard of the state; else the state is the same on every rank."""


class Segment(msgspec.Struct, frozen=True, tag=True):
    """The shared memory file of this worker: a control page, then `slots` slots of `capacity` bytes."""

    path: str
    slots: int
    capacity: int
    overhead: float = 0.0
    """Share of the time that staging may take; 0: whatever it takes."""


class Acquire(msgspec.Struct, frozen=True, tag=True):
    """The worker wants to stage `iteration`. Answer: Slot, as soon as one may be overwritten."""

    iteration: int


class Slot(msgspec.Struct, frozen=True, tag=True):
    """Write at most `capacity` bytes at `offset` of the segment."""

    slot: int
    offset: int
    waited_s: float
    """How long it was waited for while memory was still being allocated: no save pays that again."""


class Staged(msgspec.Struct, frozen=True, tag=True):
    """The commit of a stage: `size` bytes of safetensors in `slot` are whole. Answer: Done, which training does not
    wait for: what is wrong with it is told at the next question."""

    slot: int
    iteration: int
    size: int
    persist: bool
    """Copy it to the store now, whatever the interval says."""
    thinned: str = ""
    """Why not every iteration is staged; empty while each is."""


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Wait until `iteration` is committed in the store. Answer: Done with its manifest key, or Problem."""

    iteration: int


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """What does this round start from? Answer: Fetched, when the bytes lie verified in this node's memory."""


class Fetched(msgspec.Struct, frozen=True, tag=True):
    """Read `size` bytes at `offset` of `path`.

    `path` is empty when the round starts from nothing (`iteration` 0), and where no shard is this rank's, because
    another number of ranks cut the state: it reads what it needs of all of them from `sources`.
    """

    path: str
    offset: int
    size: int
    round: int
    iteration: int
    digest: str
    """Of those bytes, to be checked while copying."""
    source: str
    """memory | peer NODE | store KEY | N shards"""
    sources: tuple[Holding, ...] = ()
    """Of a sharded state: where every shard is held, best first."""
    token: str = ""
    """What peers want to see."""
    authority: str = ""
    """By what they are known, PEM; empty: they speak in clear."""
    why: str = ""
    """What was wrong at the places that come before the source; empty when nothing was."""


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """What was fetched is no state, or some of it cannot be had: the master begins another round. No answer comes."""

    refusals: tuple[Refusal, ...]


class Report(msgspec.Struct, frozen=True, tag=True):
    """Telemetry of one iteration: metric names and values. No answer."""

    iteration: int
    values: dict[str, float | int | str]


class Done(msgspec.Struct, frozen=True, tag=True):
    """As asked."""

    detail: str = ""


class Problem(msgspec.Struct, frozen=True, tag=True):
    """Not as asked; one line that says why and how to mend it."""

    message: str


Request = Hello | Announce | Acquire | Staged | Flush | Fetch | Unusable | Report
Reply = Welcome | Segment | Slot | Fetched | Done | Problem

_reply = msgspec.json.Decoder(Reply)
_encode = msgspec.json.Encoder().encode
R = TypeVar("R")


def _json_value(value: float | int | str) -> float | int | str:
    """JSON has no nan and no inf: they travel as text, which float() reads again."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class LinkError(ConnectionError):
    """The agent went away, or answered with a Problem."""


class Link:
    """A worker's connection to its agent. Not thread-safe: one Link a thread."""

    def __init__(self, path: str, hello: Hello) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")
        self._unread = 0
        """Answers that nobody has asked for yet."""
        self.welcome = self.ask(hello, Welcome)

    @classmethod
    def from_environment(cls) -> "Link | None":
        """The link of this worker, or None where no agent started it."""
        path = os.environ.get(AGENT_VARIABLE)
        if not path:
            return None
        local_rank = os.environ.get(LOCAL_RANK_VARIABLE) or os.environ["LOCAL_RANK"]
        rank, round_ = int(os.environ["RANK"]), int(os.environ["EVERSTEP_ROUND"])
        return cls(path, Hello(os.getpid(), rank, int(local_rank), round_))

    def tell(self, request: Request) -> None:
        """Send without waiting for an answer: a Report has none, that of Staged is read with the next one."""
        if isinstance(request, Report):
            request = msgspec.structs.replace(request, values={k: _json_value(v) for k, v in request.values.items()})
        else:
            self._unread += 1
        self._socket.sendall(_encode(request) + b"\n")

    def ask(self, request: Request, answer: type[R]) -> R:
        """Send and wait for the answer of that type. Raises LinkError for a Problem, also with what was told before,
        or a lost agent."""
        self.tell(request)
        return self.read_answer(answer)

    def refuse_restore(self, refusals: tuple[Refusal, ...]) -> None:
        """Say that the round has nothing to begin from, and wait for its end, which ends this process; returns when
        that does not come."""
        with suppress(LinkError, OSError):
            self.ask(Unusable(refusals), Done)
        time.sleep(_ROUND_ENDS_S)

    def read_answer(self, answer: type[R]) -> R:
        """Wait for the answer to what was told last; the rest is as `ask` says."""
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
        """Hang up."""
        self._lines.close()
        self._socket.close()
