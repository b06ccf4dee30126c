"""Agents that only talk: thousands in one process, one connection each, over the master's real HTTP.

An agent joins until it has a seat, then sends heartbeats; told to rejoin, it joins again. A real agent talks on two
connections (its heartbeats continue while it joins); its workers and shared memory do not concern the master.
"""

import asyncio
import gc
import os
import time
from asyncio import sslproto
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec

from everstep.runtime.agent.talk import MasterDialogue
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.messages import Action, Directive, Join, Seat

CONNECTING = 256
"""Connections that one process opens at once, as many as a listener's queue takes."""

_encode = msgspec.json.Encoder().encode
_seat = msgspec.json.Decoder(Seat).decode
_directive = msgspec.json.Decoder(Directive).decode


@dataclass(frozen=True)
class Add:
    """Start these agents."""

    names: list[str]


@dataclass(frozen=True)
class Drop:
    """End this agent."""

    name: str


@dataclass(frozen=True)
class AllSeated:
    """All agents of one process have a seat in this round. Times are from the machine's monotonic clock."""

    round: int
    last_join: float
    seats: list[float]


@dataclass(frozen=True)
class Beats:
    """Heartbeats answered so far; also the request for that number."""

    count: int = 0


class _Agent(asyncio.Protocol):
    def __init__(self, name: str, crowd: "_Crowd") -> None:
        self.name = name
        self._talk = MasterDialogue(name, int(time.time() * 1000))
        self._length = 0
        self._crowd = crowd
        self._buffer = bytearray()
        self._status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._join()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.on_lost(self, exc)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._status:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            self._status = int(head[9:12])
            _, found, length = head.partition(b"content-length:")
            self._length = int(length.split(b"\r\n", 1)[0]) if found else 0
            del self._buffer[: end + 4]
        if len(self._buffer) < self._length:
            return
        body, status = bytes(self._buffer), self._status
        self._buffer.clear()
        self._status = 0
        if status not in (200, 204):
            raise RuntimeError(f"{self.name}: {status} {body.decode(errors='replace')}")
        if self._talk.waits:
            self._take_seat(body if status == 200 else b"")
        else:
            self._follow(_directive(body))

    def _take_seat(self, body: bytes) -> None:
        if not body:
            return self._join()
        self._talk.take_seat(_seat(body))
        self._crowd.on_seat(self._talk.round)
        return self._beat()

    def _follow(self, told: Directive) -> None:
        self._crowd.beats += 1
        if self._talk.accept(told) is Action.REJOIN and self._talk.is_over(told.round):
            return self._join()
        return self._beat()

    def _join(self) -> None:
        self._crowd.on_join(self._talk.round)
        self._post("join", self._talk.next_join(Join(self.name, "worker", "h", 1, "127.0.0.1:7", 29500)))

    def _beat(self) -> None:
        self._post("heartbeat", self._talk.next_heartbeat(iteration=1, phase="forward"))

    def _post(self, verb: str, message: msgspec.Struct) -> None:
        body = _encode(message)
        self._transport.write(self._crowd.head % (verb.encode(), len(body)) + body)


class _Crowd:
    """The agents of one process."""

    def __init__(self, address: str, credentials: Credentials, tell: Callable[[AllSeated], None]) -> None:
        self._trust = credentials.client
        self.head = (
            f"POST /v1/%b HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {credentials.token}\r\n"
            "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        ).encode()
        self.beats = 0
        self._host, _, self._port = address.partition(":")
        self._tell = tell
        self._agents: dict[str, _Agent] = {}
        self._last_join: dict[int, float] = {}
        self._seats: defaultdict[int, list[float]] = defaultdict(list)
        self._opening = asyncio.Semaphore(CONNECTING)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, names: list[str]) -> None:
        for name in names:
            self._agents[name] = agent = _Agent(name, self)
            task = asyncio.create_task(self._open(agent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def drop(self, name: str) -> None:
        self._agents.pop(name).close()

    def on_lost(self, agent: _Agent, error: Exception | None) -> None:
        if self._agents.get(agent.name) is agent:
            raise RuntimeError(f"{agent.name} lost its master: {error}")

    def on_join(self, after: int) -> None:
        """An agent has joined the next round. A newcomer joins whichever round is the newest."""
        self._last_join[max(after, *self._last_join, 0)] = time.monotonic()

    def on_seat(self, round_: int) -> None:
        seats = self._seats[round_]
        seats.append(time.monotonic())
        if len(seats) == len(self._agents):
            self._tell(AllSeated(round_, max(self._last_join.values()), seats))

    async def _open(self, agent: _Agent) -> None:
        async with self._opening:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: agent, self._host, int(self._port), ssl=self._trust)


async def _run(pipe: Connection, address: str, credentials: Credentials) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[Add | Drop | Beats | None] = asyncio.Queue()
    loop.add_reader(pipe.fileno(), lambda: told.put_nowait(pipe.recv()))
    loop.set_exception_handler(_end)
    crowd = _Crowd(address, credentials, pipe.send)
    while (asked := await told.get()) is not None:
        match asked:
            case Add(names):
                crowd.add(names)
            case Drop(name):
                crowd.drop(name)
            case Beats():
                pipe.send(Beats(crowd.beats))


def _end(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """End the process: an agent that fails makes every figure worthless."""
    print(f"simulated agents: {context['message']}: {context.get('exception')}", flush=True)
    os._exit(1)


def serve(pipe: Connection, address: str, credentials: Credentials, cores: set[int]) -> None:
    """A process of simulated agents: commands and answers go through the pipe, until None comes."""
    os.sched_setaffinity(0, cores)
    gc.freeze()
    sslproto.SSLProtocol.max_size = 1 << 14  # asyncio's 256 KiB per agent would add up to gigabytes.
    asyncio.run(_run(pipe, address, credentials))
