"""Agents that only dialogue: thousands in one process, one connection each, over the master's real HTTP.

An agent joins until it has a seat, then sends heartbeats; told to rejoin, it joins again. If its connection is lost it
looks for the next master in the journal, as often as a real one would. A real agent talks on two connections (its
heartbeats continue while it joins); its workers and shared memory do not concern the master.
"""

import asyncio
import gc
import os
import random
import time
from asyncio import sslproto
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from everstep.runtime.agent.client import FIRST_PAUSE_S, LOOKS_PER_S
from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.master import find_master
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.messages import Action, Directive, Join
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.store import DirectoryStore

CONNECTING = 256
"""Connections that one process opens at once, as many as a listener's queue takes."""
SHARED_LOOK_S = 0.02
"""Agents of one process share a look at the journal that is not older: real ones look from machines of their own."""

_encode = msgspec.json.Encoder().encode
_seat = msgspec.json.Decoder(Seat).decode
_directive = msgspec.json.Decoder(Directive).decode


@dataclass(frozen=True)
class Add:
    """Start these agents."""

    names: list[str]


@dataclass(frozen=True)
class Drop:
    """End these agents."""

    names: frozenset[str]


@dataclass(frozen=True)
class AllSeated:
    """All agents of one process have a seat in this round. Times are from the machine's monotonic clock."""

    round: int
    last_join: float
    seats: list[float]


@dataclass(frozen=True)
class AllHeard:
    """The master of this epoch has answered all agents of one process."""

    epoch: int
    connected: list[float]
    """When each had a connection to it and had sent its heartbeat or join."""
    answered: list[float]
    looks: int
    """Looks at the journal that the agents made to find it."""


@dataclass(frozen=True)
class Beats:
    """Heartbeats answered so far; also the request for that number."""

    count: int = 0


class _Agent(asyncio.Protocol):
    def __init__(self, name: str, crowd: "_Crowd") -> None:
        self.name = name
        self._dialogue = MasterDialogue(name, int(time.time() * 1000))
        self._length = 0
        self._crowd = crowd
        self._buffer = bytearray()
        self._status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport, self._status = transport, 0
        self._buffer.clear()
        if self._dialogue.waits or not self._dialogue.round:
            self._join()
        else:
            self._beat()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.on_lost(self)

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
            _, known_variables, length = head.partition(b"content-length:")
            self._length = int(length.split(b"\r\n", 1)[0]) if known_variables else 0
            del self._buffer[: end + 4]
        if len(self._buffer) < self._length:
            return
        body, status = bytes(self._buffer), self._status
        self._buffer.clear()
        self._status = 0
        if status not in (200, 204):
            raise RuntimeError(f"{self.name}: {status} {body.decode(errors='replace')}")
        if self._dialogue.waits:
            self._take_seat(body if status == 200 else b"")
        else:
            self._follow(_directive(body))

    def _take_seat(self, body: bytes) -> None:
        if not body:
            return self._join()
        seat = _seat(body)
        self._dialogue.take_seat(seat)
        self._crowd.on_answer(self.name, seat.epoch)
        self._crowd.on_seat(self._dialogue.round)
        return self._beat()

    def _follow(self, directive: Directive) -> None:
        self._crowd.beats += 1
        self._crowd.on_answer(self.name, directive.epoch)
        if self._dialogue.accept(directive) is Action.REJOIN and self._dialogue.is_over(directive.round):
            return self._join()
        return self._beat()

    def _join(self) -> None:
        self._crowd.on_join(self._dialogue.round)
        self._post("join", self._dialogue.next_join(Join(self.name, "worker", "h", 1, "127.0.0.1:7", 29500)))

    def _beat(self) -> None:
        self._post("heartbeat", self._dialogue.next_heartbeat(iteration=1, phase="forward"))

    def _post(self, verb: str, message: msgspec.Struct) -> None:
        body = _encode(message)
        self._transport.write(self._crowd.head % (verb.encode(), len(body)) + body)


class _Crowd:
    """The agents of one process."""

    def __init__(
        self,
        find: Callable[[], str],
        size: int,
        credentials: Credentials,
        tell: Callable[[AllSeated | AllHeard], None],
    ) -> None:
        """`find` returns the newest master's address; `size`: agents of the whole job."""
        self._trust, self._find, self._size, self._tell = credentials.client, find, size, tell
        self._address = find()
        self.head = (
            f"POST /v1/%b HTTP/1.1\r\nHost: {self._address}\r\nAuthorization: Bearer {credentials.token}\r\n"
            "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        ).encode()
        self.beats = 0
        self._agents: dict[str, _Agent] = {}
        self._last_join: dict[int, float] = {}
        self._seats: defaultdict[int, list[float]] = defaultdict(list)
        self._opening = asyncio.Semaphore(CONNECTING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._chance = random.Random(size)
        self._epoch, self._looks, self._looked_at = 1, 0, 0.0
        self._connected: list[float] = []
        self._answered: dict[str, float] = {}

    def add(self, names: list[str]) -> None:
        for name in names:
            self._agents[name] = agent = _Agent(name, self)
            self._start(self._open_first(agent))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop(self, names: frozenset[str]) -> None:
        for name in names & self._agents.keys():
            self._agents.pop(name).close()

    def on_lost(self, agent: _Agent) -> None:
        """Its master is gone, or the connection."""
        if self._agents.get(agent.name) is agent:
            self._start(self._find_again(agent))

    async def _find_again(self, agent: _Agent) -> None:
        """As a real agent's client does it: a look at the journal in each period, which grows with the job.

        The address may be the same again: a master that is starved closes connections that it comes to read too late.
        """
        between_s = self._size / LOOKS_PER_S
        next_look = time.monotonic() + between_s * self._chance.random()
        while agent.name in self._agents:
            await asyncio.sleep(max(FIRST_PAUSE_S, next_look - time.monotonic()))
            next_look = time.monotonic() + between_s
            await self._look()
            if await self._open(agent):
                return

    async def _look(self) -> str:
        self._looks += 1
        if time.monotonic() - self._looked_at > SHARED_LOOK_S:
            self._looked_at = time.monotonic()
            self._address = await asyncio.to_thread(self._find)
        return self._address

    def on_answer(self, name: str, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch, self._answered = epoch, {}
        if epoch > 1 and name not in self._answered:
            self._answered[name] = time.monotonic()
            if len(self._answered) == len(self._agents):
                self._tell(AllHeard(epoch, self._connected, list(self._answered.values()), self._looks))

    def on_join(self, after: int) -> None:
        """An agent has joined the next round. A newcomer joins whichever round is the newest."""
        self._last_join[max(after, *self._last_join, 0)] = time.monotonic()

    def on_seat(self, round_: int) -> None:
        seats = self._seats[round_]
        seats.append(time.monotonic())
        if len(seats) == len(self._agents):
            self._tell(AllSeated(round_, max(self._last_join.values()), seats))

    async def _open_first(self, agent: _Agent) -> None:
        if not await self._open(agent):
            self.on_lost(agent)

    async def _open(self, agent: _Agent) -> bool:
        """Connect to the newest address. Whether something listens there."""
        host, _, port = self._address.partition(":")
        async with self._opening:
            try:
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: agent, host, int(port), ssl=self._trust)
            except OSError:
                return False
        self._connected.append(time.monotonic())
        return True


async def _run(pipe: Connection, find: Callable[[], str], size: int, credentials: Credentials) -> None:
    loop = asyncio.get_running_loop()
    commands: asyncio.Queue[Add | Drop | Beats | None] = asyncio.Queue()
    loop.add_reader(pipe.fileno(), lambda: commands.put_nowait(pipe.recv()))
    loop.set_exception_handler(_end)
    crowd = _Crowd(find, size, credentials, pipe.send)
    while (command := await commands.get()) is not None:
        match command:
            case Add(names):
                crowd.add(names)
            case Drop(names):
                crowd.drop(names)
            case Beats():
                pipe.send(Beats(crowd.beats))


def _end(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """End the process: an agent that fails makes every figure worthless."""
    print(f"simulated agents: {context['message']}: {context.get('exception')}", flush=True)
    os._exit(1)


def serve(pipe: Connection, folder: Path, job: str, size: int, credentials: Credentials, cores: set[int]) -> None:
    """A process of simulated agents of a job of `size` nodes with its journal in `folder`: commands and answers go
    through the pipe, until None comes."""
    os.sched_setaffinity(0, cores)
    gc.freeze()
    sslproto.SSLProtocol.max_size = 1 << 14  # asyncio's 256 KiB per agent would add up to gigabytes.

    def find() -> str:
        master_address = find_master(DirectoryStore(folder), job)
        assert master_address is not None, "a master that asks for nodes has claimed its job"
        return master_address.address

    asyncio.run(_run(pipe, find, size, credentials))
