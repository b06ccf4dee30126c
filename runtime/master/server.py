"""The master's HTTP server: passes requests to the endpoints."""

import contextlib
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from everstep.runtime.job.brain import Refused
from everstep.runtime.master.endpoints import Endpoints
from everstep.runtime.net.token_gate import BODY_S, MOST_STRANGERS, BadBody, TokenGate, read_body, server_of


@contextlib.asynccontextmanager
async def serving(
    endpoints: Endpoints, listener: socket.socket, body_s: float = BODY_S, nodes: int = 0
) -> AsyncIterator[None]:
    """Serve the endpoints at `listener` while the block runs. A request must send its body within `body_s`. `nodes` is
    the number of agents that may connect at once."""
    gate = TokenGate(endpoints.credentials, strangers=max(MOST_STRANGERS, nodes))

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        async def read() -> bytes:
            try:
                return await read_body(request, body_s)
            except BadBody as error:
                raise Refused(str(error)) from error

        is_admitted = gate.admits(request)
        reply = await endpoints.answer(request.method, request.path, request.headers, read)
        response = web.Response(body=reply.body, status=reply.status, headers={"Content-Type": reply.content_type})
        if not is_admitted:
            response.force_close()
        return response

    async with gate.serve(server_of(handle), listener):
        yield
