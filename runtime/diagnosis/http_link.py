"""Both ends of a check's HTTP: the routes of a coordinator, and the link of a node.

POST /v1/check/arrive, /v1/check/order, /v1/check/told; the bodies are in `messages`. Statuses: 200 success, 204 a poll
for orders without result, 400 a malformed body (the text names the field), 401 a wrong token, 409 a taken or unknown
name, 410 the check does not take place.
"""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web

from everstep.runtime.diagnosis.coordinator import POLL_S, Coordinator
from everstep.runtime.diagnosis.errors import (
    CoordinatorLostError,
    NoQuorumError,
    RefusedError,
    TakenNameError,
    UnknownNodeError,
)
from everstep.runtime.diagnosis.messages import Arrive, Ask, Order, StageResult
from everstep.runtime.net.tls import Credentials, mismatch_reason
from everstep.runtime.net.token_gate import END_S, BadBody, TokenGate, application_of, read_body

MAX_BODY_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 10.0
"""Timeout of a request, beyond the time of a long poll."""

M = TypeVar("M")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_encode = msgspec.json.Encoder().encode
_decode_order = msgspec.json.Decoder(Order).decode


def _routes(coordinator: Coordinator) -> list[web.RouteDef]:
    """The coordinator's routes. The server itself checks the bearer token."""

    async def arrive(request: web.Request) -> web.Response:
        await coordinator.arrive(await _decode_body(request, Arrive))
        return _json_response({})

    async def order(request: web.Request) -> web.Response:
        order_given_out = await coordinator.order(await _decode_body(request, Ask))
        return web.Response(status=204) if order_given_out is None else _json_response(order_given_out)

    async def report(request: web.Request) -> web.Response:
        await coordinator.report(await _decode_body(request, StageResult))
        return _json_response({})

    def answering(handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except (TakenNameError, UnknownNodeError) as error:
                return _json_response({"error": str(error)}, 409)
            except RefusedError as error:
                return _json_response({"error": str(error)}, 400)
            except NoQuorumError as error:
                return _json_response({"error": str(error)}, 410)

        return answer

    paths = {"arrive": arrive, "order": order, "told": report}
    return [web.post(f"/v1/check/{path}", answering(handler)) for path, handler in paths.items()]


@asynccontextmanager
async def serve_coordinator(
    coordinator: Coordinator, listener: socket.socket, gate: TokenGate, end_s: float = END_S
) -> AsyncIterator[None]:
    """Serve the coordinator at `listener` while the block runs. The gate checks the token. At the end, requests in
    progress have `end_s` to finish."""
    guard = gate.guard("check", lambda why: _json_response({"error": why}, 401))
    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app.add_routes(_routes(coordinator))
    # A handler is cancelled with its connection. Otherwise a dead node would seem to wait until its poll times out.
    async with gate.serve(application_of(app, end_s=end_s, cancels=True), listener):
        yield


def _json_response(message: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(message), status=status, content_type="application/json")


async def _decode_body(request: web.Request, kind: type[M]) -> M:
    """Raises RefusedError for a malformed body."""
    try:
        return msgspec.json.decode(await read_body(request), type=kind)
    except (msgspec.DecodeError, BadBody) as error:
        raise RefusedError(f"{kind.__name__}: {error}") from None


class HttpLink:
    """A node's link to a coordinator elsewhere.

    Args:
        address: host:port.
        credentials: those of all nodes of the check.
    # A handler is cancelled with its connection. Otherwise a dead node would seem to wait until its poll ends.

    Its methods raise RefusedError, TakenNameError, UnknownNodeError and NoQuorumError as the coordinator does,
    CoordinatorLostError if it does not answer.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        address: str,
        credentials: Credentials,
        *,
        patience_s: float = 30.0,
        arrival_s: float = 30.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._http = http
        self._address = address
        self._scheme, self._trust = credentials.scheme, credentials.client or True
        self._headers = {**credentials.headers, "Content-Type": "application/json"}
        self._patience_s = patience_s
        self._arrival_s = arrival_s
        self._jitter = jitter

    async def arrive(self, arrive: Arrive) -> None:
        """This node is ready."""
        await self._post("arrive", arrive, self._arrival_s)

    async def order(self, ask: Ask) -> Order | None:
        """The next order; None after a long poll."""
        body = await self._post("order", ask, self._patience_s, POLL_S)
        return _decode_order(body) if body else None

    async def report(self, result: StageResult) -> None:
        """Report what the node measured."""
        await self._post("told", result, self._patience_s)

    async def _post(
        self, path: str, message: Arrive | Ask | StageResult, patience_s: float, held_s: float = 0.0
    ) -> bytes:
        url = f"{self._scheme}://{self._address}/v1/check/{path}"
        deadline = time.monotonic() + patience_s
        limit = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S + held_s)
        while True:
            try:
                async with self._http.post(
                    url, data=_encode(message), headers=self._headers, timeout=limit, ssl=self._trust
                ) as answer:
                    return self._parse_answer(path, answer.status, await answer.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                if why := mismatch_reason(error):
                    raise RefusedError(f"the coordinator at {self._address} {why}") from None
                if time.monotonic() >= deadline:
                    why = str(error) or type(error).__name__
                    raise CoordinatorLostError(f"the coordinator at {self._address} does not answer: {why}") from None
            await asyncio.sleep(0.1 + 0.4 * self._jitter())

    def _parse_answer(self, path: str, status: int, body: bytes) -> bytes:
        if status in (200, 204):
            return body
        try:
            why = msgspec.json.decode(body, type=dict[str, str]).get("error", "")
        except msgspec.DecodeError:
            why = ""
        text = f"the coordinator at {self._address} refused: {why or f'HTTP status {status}'}"
        if status == 410:
            raise NoQuorumError(why)
        if status == 409:
            raise TakenNameError(text) if path == "arrive" else UnknownNodeError(text)
        raise RefusedError(text)
