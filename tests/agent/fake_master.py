"""A master for tests of the agent: seats nodes as the test says, and keeps what it was told."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from everstep.runtime.protocol.holdings import Holding, Restore
from everstep.runtime.protocol.messages import (
    JOB_HEADER,
    Ack,
    Action,
    Directive,
    Disconnected,
    Dumped,
    Finished,
    Heartbeat,
    Join,
    Leaving,
    Persisted,
    WorkerExit,
)
from everstep.runtime.protocol.rounds import Seat

TOKEN = "secret"
DEADLINE_S = 20
POLL_S = 0.5
"""So long a heartbeat is held: who hears nothing for longer has lost its master."""


class FakeMaster:
    """Gives every join a seat in the next round, as soon as `nodes` have joined."""

    def __init__(self, nodes: int = 1, epoch: int = 1, after_round: int = 0, job: str = "") -> None:
        self.job = job
        """Whose master it is; empty: of whoever comes."""
        self.nodes = nodes
        self.epoch = epoch
        self.round = after_round
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        """Everything in the order of its arrival, but heartbeats."""
        self._lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        """Of the heartbeats' telemetry: several workers' may come in one."""
        self.still_s = 0.0
        """The longest that a heartbeat told."""
        self.seats: dict[str, Seat] = {}
        self.joined: dict[str, Join] = {}
        self.directive = Directive(epoch, 0, Action.CONTINUE)
        self.restore: Restore | None = None
        self.stale: asyncio.Event | None = None
        """The first heartbeat is answered when it is set: that the node is unknown, as it was when it asked."""
        self.takes_telemetry = asyncio.Event()
        """Until it is set, heartbeats with telemetry wait on their way."""
        self.takes_telemetry.set()
        self.gone = False
        self.url = ""
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> "FakeMaster":
        app = web.Application()
        for name in ("join", "heartbeat", "fault", "disconnected", "finished", "persisted", "leaving", "dumped"):
            app.router.add_post(f"/v1/{name}", getattr(self, f"_{name}"))
        app.router.add_get("/v1/status", self._status)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gone = True
        async with self._changed:
            self._changed.notify_all()
        await self._runner.cleanup()

    async def next(self, kind: type[Any]) -> Any:
        """The next message of that kind; others before it are skipped. Fails at the deadline."""
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(message := await self.told.get(), kind):
                pass
            return message

    async def telemetry(self, name: str) -> dict[str, Any]:
        """The next line of telemetry that has this field."""
        async with asyncio.timeout(DEADLINE_S):
            while name not in (line := await self._lines.get()):
                pass
            return line

    async def direct(self, action: Action, round_: int = 0) -> None:
        """Tell all nodes."""
        self.directive = Directive(self.epoch, self.directive.number + 1, action, "the test said so", round_)
        async with self._changed:
            self._changed.notify_all()

    async def _take(self, request: web.Request, kind: type[Any]) -> Any:
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            raise web.HTTPUnauthorized
        if self.job not in ("", request.headers[JOB_HEADER]):
            raise web.HTTPConflict(text=f"the master of job {self.job}, not of {request.headers[JOB_HEADER]}")
        message = msgspec.json.decode(await request.read(), type=kind)
        if kind is Heartbeat:
            self.still_s = max(self.still_s, message.still_s)
            for line in message.telemetry:
                self._lines.put_nowait(line)
        else:
            self.told.put_nowait(message)
        return message

    def _answer(self, message: object) -> web.Response:
        return web.Response(body=msgspec.json.encode(message), content_type="application/json")

    async def _join(self, request: web.Request) -> web.Response:
        join = await self._take(request, Join)
        async with self._changed:
            self.joined[join.node] = join
            if len(self.joined) == self.nodes:
                self._seat()
                self._changed.notify_all()
            await self._changed.wait_for(
                lambda: self.gone or (join.node in self.seats and self.seats[join.node].round > join.after_round)
            )
        return web.Response(status=503) if self.gone else self._answer(self.seats[join.node])

    def _seat(self) -> None:
        self.round += 1
        joins = [self.joined[name] for name in sorted(self.joined)]
        world, first = sum(join.slots for join in joins), 0
        for rank, join in enumerate(joins):
            self.seats[join.node] = Seat(
                self.epoch, self.round, join.role, rank, len(joins), first, world, first, world,
                "127.0.0.1", joins[0].master_port, self.round - 1, self.restore, rank == 0,
            )  # fmt: skip
            first += join.slots
        self.joined = {}

    async def _heartbeat(self, request: web.Request) -> web.Response:
        if msgspec.json.decode(await request.read(), type=Heartbeat).telemetry:
            await self.takes_telemetry.wait()
        beat = await self._take(request, Heartbeat)
        if self.stale is not None and not beat.telemetry:
            stale, self.stale = self.stale, None
            await stale.wait()
            raise web.HTTPConflict(text='{"error": "no node of this job"}')
        if not beat.telemetry:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S), self._changed:
                    await self._changed.wait_for(lambda: self.gone or self.directive.number > beat.seen)
        return web.Response(status=503) if self.gone else self._answer(self.directive)

    async def _fault(self, request: web.Request) -> web.Response:
        await self._take(request, WorkerExit)
        return self._answer(Ack(self.epoch))

    async def _disconnected(self, request: web.Request) -> web.Response:
        await self._take(request, Disconnected)
        return self._answer(Ack(self.epoch))

    async def _leaving(self, request: web.Request) -> web.Response:
        await self._take(request, Leaving)
        return self._answer(Ack(self.epoch))

    async def _dumped(self, request: web.Request) -> web.Response:
        await self._take(request, Dumped)
        return self._answer(Ack(self.epoch))

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"ended": None})

    async def _finished(self, request: web.Request) -> web.Response:
        await self._take(request, Finished)
        return self._answer(Ack(self.epoch))

    async def _persisted(self, request: web.Request) -> web.Response:
        holding: Holding = (await self._take(request, Persisted)).holding
        return self._answer(
            Ack(self.epoch, f"jobs/x/checkpoints/{holding.round:06d}-{holding.iteration:09d}/manifest.json")
        )
