"""The master's HTTP server: JSON in, JSON out, a bearer token on everything.

POST /v1/join, /v1/heartbeat, /v1/fault, /v1/finished, /v1/persisted, /v1/scale; GET /v1/round/<n>, /v1/status.
200 an answer, 204 a long poll that ended without one, 400 a body that is not as the message says (names the field),
401 a wrong token, 404 no such round, 409 the node has no place in this job: it ends.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from runtime.job import seats
from runtime.job.brain import Refused, UnknownNode
from runtime.job.events import HeartbeatSeen, Joined, NodeFinishedRound, ScaleAsked, ShardStored, WorkerExited
from runtime.job.messages import PROTOCOL, Ack, Action, Finished, Heartbeat, Join, Persisted, Scale, WorkerExit
from runtime.job.sizes import size
from runtime.job.state import State
from runtime.master.desk import Desk
from runtime.master.manifest import checkpoint_key

JOIN_POLL_S = 20.0
HEARTBEAT_POLL_S = 5.0
COMMIT_POLL_S = 5.0
LARGEST_BODY = 1 << 20

M = TypeVar("M")
_encode = msgspec.json.Encoder().encode


def application(desk: Desk, token: str, on_telemetry: Callable[[Heartbeat], None]) -> web.Application:
    """The server of one master."""
    server = _Server(desk, token, on_telemetry)
    app = web.Application(middlewares=[server.guard], client_max_size=LARGEST_BODY)
    app.add_routes(
        [
            web.post("/v1/join", server.join),
            web.post("/v1/heartbeat", server.heartbeat),
            web.post("/v1/fault", server.fault),
            web.post("/v1/finished", server.finished),
            web.post("/v1/persisted", server.persisted),
            web.post("/v1/scale", server.scale),
            web.get("/v1/round/{number}", server.round),
            web.get("/v1/status", server.status),
        ]
    )
    return app


def _answer(message: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(message), status=status, content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return _answer({"error": text}, status)


async def _body(request: web.Request, kind: type[M]) -> M:
    """The message. Raises Refused for a body that is none."""
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except web.HTTPRequestEntityTooLarge as error:
        raise Refused(f"{kind.__name__}: the body has more than {LARGEST_BODY} bytes") from error
    except msgspec.DecodeError as error:
        raise Refused(f"{kind.__name__}: {error}") from error


class _Server:
    def __init__(self, desk: Desk, token: str, on_telemetry: Callable[[Heartbeat], None]) -> None:
        self._desk = desk
        self._bearer = f"Bearer {token}".encode()
        self._on_telemetry = on_telemetry
        self._unauthorized = 0
        self._malformed = 0

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._bearer):
            self._unauthorized += 1
            return _problem(401, "the Authorization header has not this job's token")
        try:
            return await handler(request)
        except UnknownNode as error:
            return _problem(409, str(error))
        except Refused as error:
            self._malformed += 1
            return _problem(400, str(error))

    def _ack(self, committed: str = "") -> web.Response:
        return _answer(Ack(self._desk.state.epoch, committed))

    async def join(self, request: web.Request) -> web.Response:
        asked = await _body(request, Join)
        if asked.protocol != PROTOCOL:
            raise Refused(f"Join: protocol {asked.protocol}, this master speaks {PROTOCOL}; install one version")
        host, colon, port = asked.address.rpartition(":")
        if not host or not colon or not port.isdigit() or asked.slots < 1 or not 0 < asked.master_port < 65536:
            raise Refused("Join: `address` must be host:port, `slots` at least 1, `master_port` a port")
        self._desk.feed(Joined(asked))

        def ready(state: State) -> bool:
            told = seats.directive(state, asked.node)
            leave = told is not None and told.action is Action.LEAVE
            return leave or seats.seat_for(state, asked.node, asked.after_round) is not None

        if not await self._desk.until(asked.node, ready, JOIN_POLL_S):
            return web.Response(status=204)
        seat = seats.seat_for(self._desk.state, asked.node, asked.after_round)
        return _answer(seat) if seat else _problem(409, f"{asked.node} has no place in this job any more")

    async def heartbeat(self, request: web.Request) -> web.Response:
        beat = await _body(request, Heartbeat)
        self._desk.feed(HeartbeatSeen(beat))
        if beat.telemetry:
            self._on_telemetry(beat)
        else:

            def ready(state: State) -> bool:
                told = seats.directive(state, beat.node)
                return told is not None and told.number > beat.seen

            await self._desk.until(beat.node, ready, HEARTBEAT_POLL_S)
        told = seats.directive(self._desk.state, beat.node)
        return _answer(told) if told else _problem(409, f"{beat.node} is no node of this job")

    async def fault(self, request: web.Request) -> web.Response:
        self._desk.feed(WorkerExited(await _body(request, WorkerExit)))
        await self._desk.durable()
        return self._ack()

    async def finished(self, request: web.Request) -> web.Response:
        self._desk.feed(NodeFinishedRound(await _body(request, Finished)))
        await self._desk.durable()
        return self._ack()

    async def persisted(self, request: web.Request) -> web.Response:
        told = await _body(request, Persisted)
        self._desk.feed(ShardStored(told))
        await self._desk.durable()
        place = (told.holding.round, told.holding.iteration)

        def committed(state: State) -> str:
            known = state.checkpoints.get(place)
            return known.manifest if known else ""

        key = checkpoint_key(self._desk.spec.job, *place)
        await self._desk.until(key, lambda state: bool(committed(state)), COMMIT_POLL_S)
        return self._ack(committed(self._desk.state))

    async def scale(self, request: web.Request) -> web.Response:
        asked = await _body(request, Scale)
        self._desk.feed(ScaleAsked(asked.role, asked.nodes))
        await self._desk.durable()
        return self._ack()

    async def round(self, request: web.Request) -> web.Response:
        known = self._desk.state.round
        if known is None or request.match_info["number"] != str(known.number):
            return _problem(404, f"round {request.match_info['number']} is not the newest round of this job")
        return _answer(known)

    async def status(self, request: web.Request) -> web.Response:
        state, spec = self._desk.state, self._desk.spec
        newest = max((key for key, known in state.checkpoints.items() if known.manifest), default=None)
        return _answer(
            {
                "job": spec.job,
                "epoch": state.epoch,
                "phase": state.phase,
                "reason": state.reason,
                "waits": self._desk.brain.reason,
                "deadline": self._desk.brain.next_deadline(),
                "round": state.round.number if state.round else 0,
                "iteration": state.iteration,
                "sizes": {role: size(state, spec, role) for role in spec.roles},
                "nodes": {
                    node.name: {"role": node.role, "host": node.host, "phase": node.phase, "address": node.address}
                    for node in state.nodes.values()
                },
                "committed": None if newest is None else state.checkpoints[newest].manifest,
                "ended": state.ended,
                "refused": {"unauthorized": self._unauthorized, "malformed": self._malformed},
            }
        )
