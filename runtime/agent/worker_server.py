"""The agent's side of the worker link: reads the workers' requests, asks the keeper, answers.

Requests that cannot block are answered from the event loop (a stage costs the worker one such answer). The others run
in threads, one request per worker at a time.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from everstep.runtime.agent.client import NoPlace, NotAllowed, NotUnderstood
from everstep.runtime.protocol.holdings import Refusal
from everstep.runtime.protocol.keeper import Keeper
from everstep.runtime.protocol.messages import ShardLease, ShardRequest
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import (
    Acquire,
    Announce,
    Done,
    Fetch,
    Flush,
    Hello,
    Problem,
    ReplayDiffers,
    Reply,
    Report,
    Request,
    Staged,
    TakenShard,
    TakeShard,
    Unusable,
    Welcome,
)

LONGEST_LINE = 1 << 20
_GREETING_S = 15.0
"""A script that uses everstep has connected within this time, even if its imports take seconds."""
_SHARD_PAUSE_S = 0.05
"""Between two requests for a data shard, if the master answers one of a round that is over."""
_decode = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class LinkHandlers:
    """The handlers of what the workers report or ask for."""

    on_report: Callable[[int, Report], None]
    """Called with the local rank and its report."""
    on_fetched: Callable[[int, msgspec.Struct], None]
    """Called with the local rank and the state it is to restore."""
    on_unusable: Callable[[tuple[Refusal, ...]], None]
    """Called with the sources that failed."""
    ask_shard: Callable[[ShardRequest], Awaitable[ShardLease | None]]
    """Asks the master for a data shard."""
    on_replay_differs: Callable[[ReplayDiffers], None]
    """Called with how an iteration came out on another rank."""


class LinkServer:
    """Listens on one Unix socket; answers only workers of the current round."""

    def __init__(
        self,
        node: str,
        keeper: Keeper,
        welcome: Welcome,
        slots: int,
        threads: Executor,
        handlers: LinkHandlers,
    ) -> None:
        self.node = node
        self.keeper = keeper
        self.welcome = welcome
        self.slots = slots
        self.threads = threads
        self.handlers = handlers
        self._round_began = asyncio.Event()
        self.has_greeted = False
        """Whether a worker has connected: the script calls everstep."""
        self.seat: Seat | None = None
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen at the path."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), str(path))

    def begin_round(self, seat: Seat) -> None:
        """Answer the workers of this round from now on."""
        self.seat = seat
        self._round_began.set()

    def note_greeting(self) -> None:
        """Note that a worker has connected."""
        self.has_greeted = True

    def end_round(self) -> None:
        """Disconnect the round's workers; their later messages do not count."""
        for connection in list(self.connections):
            connection.read_last_stages()
            connection.abort()
        self.seat = None

    async def wait_without_greeting(self) -> None:
        """Wait until workers have run for some time and none has ever sent Hello; forever if one has."""
        await self._round_began.wait()
        await asyncio.sleep(_GREETING_S)
        if self.has_greeted:
            await asyncio.Event().wait()

    async def wait_for_stages(self) -> None:
        """Wait until each worker that has staged a state in this round has staged one more, or is gone."""
        await asyncio.gather(*[connection.wait_for_stage() for connection in self.connections if connection.has_staged])

    async def close(self) -> None:
        """Stop listening."""
        self.end_round()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(self, server: LinkServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._lines: deque[bytes] = deque()
        self._busy: asyncio.Task[None] | None = None
        self._local_rank: int | None = None
        self._stages = 0
        self._staged = asyncio.Event()
        """Set by each stage, and by the end of the connection."""

    @property
    def has_staged(self) -> bool:
        """Whether the worker has staged a state by this connection."""
        return self._stages > 0

    async def wait_for_stage(self) -> None:
        """Wait until the worker has staged one more, or is gone."""
        before = self._stages
        while self._stages == before and self._transport is not None:
            self._staged.clear()
            await self._staged.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        self._staged.set()

    def read_last_stages(self) -> None:
        """Read the stages that the worker has committed but that were not read yet: they count, even if it has died."""
        if self._transport is None or self._local_rank is None or self._busy is not None:
            return
        file = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError):  # The socket is empty or was reset.
            while data := os.read(file, 1 << 16):
                self._buffer += data
        for line in self._buffer.split(b"\n")[:-1]:
            with suppress(msgspec.DecodeError, RuntimeError):
                if isinstance(request := _decode(line), Staged):
                    self._server.keeper.commit_stage(self._local_rank, request)

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._lines.extend(lines)
        if len(self._buffer) > LONGEST_LINE:
            self._refuse("a line of more than 1 MiB")
        elif self._busy is None:
            self._answer_pending()

    def _answer_pending(self) -> None:
        """Answer pending requests until one has to wait for a thread."""
        while self._lines and self._transport is not None and self._busy is None:
            try:
                request = _decode(self._lines.popleft())
            except msgspec.DecodeError as error:
                self._refuse(f"not understood: {error}")
                return
            try:
                self._answer(request)
            except (RuntimeError, OSError, KeyError, ValueError) as error:
                self._send(_problem(error))

    def _answer(self, request: Request) -> None:
        keeper, rank = self._server.keeper, self._local_rank
        if isinstance(request, Hello):
            self._greet(request)
            return
        if rank is None:
            self._refuse("Hello comes first")
            return
        match request:
            case Report():
                self._server.handlers.on_report(rank, request)
            case Unusable(refusals):
                self._server.handlers.on_unusable(refusals)
            case ReplayDiffers():
                self._server.handlers.on_replay_differs(request)
            case Staged():
                keeper.commit_stage(rank, request)
                self._stages += 1
                self._staged.set()
                self._send(Done())
            case Acquire(iteration):
                if slot := keeper.try_acquire(rank, iteration):
                    self._send(slot)
                else:
                    self._answer_later(lambda: keeper.acquire(rank, iteration))
            case Announce(capacity, is_sharded):
                self._answer_later(lambda: keeper.announce(rank, capacity, is_sharded))
            case Flush(iteration):
                self._answer_later(lambda: Done(keeper.flush(rank, iteration)))
            case TakeShard():
                self._busy = asyncio.get_running_loop().create_task(self._take_shard(rank, request))
            case Fetch():
                self._answer_later(
                    lambda: keeper.wait_for_restore(rank), lambda reply: self._server.handlers.on_fetched(rank, reply)
                )

    def _greet(self, hello: Hello) -> None:
        seat = self._server.seat
        if seat is None or hello.round != seat.round:
            self._refuse(f"round {hello.round} is over")
        elif not 0 <= hello.local_rank < self._server.slots:
            self._refuse(f"local rank {hello.local_rank} of {self._server.slots} workers")
        else:
            self._local_rank = hello.local_rank
            self._server.note_greeting()
            start = self._server.keeper.expected_range(hello.local_rank)
            place = start._asdict() if start else {}
            of_job = {"certifies": seat.certifies > 0, "skips": seat.skips, "replays": seat.replays}
            self._send(replace(self._server.welcome, **place, **of_job, peer_copies=seat.peer_copies))

    def _answer_later(self, call: Callable[[], Reply], on_done: Callable[[Reply], None] = lambda _: None) -> None:
        self._busy = asyncio.get_running_loop().create_task(self._answer_from_thread(call, on_done))

    async def _answer_from_thread(self, call: Callable[[], Reply], on_done: Callable[[Reply], None]) -> None:
        try:
            reply = await asyncio.get_running_loop().run_in_executor(self._server.threads, call)
            if self._transport is not None:
                on_done(reply)
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            reply = _problem(error)
        self._busy = None
        self._send(reply)
        self._answer_pending()

    async def _take_shard(self, rank: int, request: TakeShard) -> None:
        """Pass the request on until it has an answer, or the worker is gone."""
        seat, lease = self._server.seat, None
        while lease is None and seat is not None and self._transport is not None:
            message = ShardRequest(self._server.node, rank, seat.round, **msgspec.structs.asdict(request))
            try:
                lease = await self._server.handlers.ask_shard(message)
            except NoPlace:
                return  # The agent's next heartbeat learns this, too, and it ends.
            except (NotUnderstood, NotAllowed) as error:
                lease = ShardLease(0, -1, str(error))
            if lease is None:
                await asyncio.sleep(_SHARD_PAUSE_S)
        self._busy = None
        if lease is not None:
            self._send(Problem(lease.problem) if lease.problem else TakenShard(lease.position))
            self._answer_pending()

    def _send(self, reply: Reply) -> None:
        if self._transport is not None:
            self._transport.write(_encode(reply) + b"\n")

    def _refuse(self, why: str) -> None:
        self._send(Problem(why))
        if self._transport is not None:
            self._transport.close()
            self._transport = None


def _problem(error: Exception) -> Problem:
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return Problem(text or type(error).__name__)
