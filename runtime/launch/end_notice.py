"""The last answers of a master: its job is over, and nodes that joined by themselves must still hear it.

Nobody can check whether such nodes have ended. Each node that still asks is told to leave, and then asks how the job
ended. Its last telemetry is stored. After that it stays silent, so silence means that nobody is left.
"""

import asyncio
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from everstep.runtime.master import Outcome
from everstep.runtime.master.telemetry import Telemetry
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import BadBody, TokenGate, application_of, read_body
from everstep.runtime.protocol.messages import Action, Directive, Heartbeat

SILENCE_S = 4.0
"""An agent that waits for its master asks more often than this."""
_LAST = 1 << 40
"""A directive number that no agent has seen."""


@dataclass
class EndNotice:
    """The server that answers for a job that is over."""

    outcome: Outcome
    epoch: int
    credentials: Credentials
    telemetry: Telemetry
    _requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, listener: socket.socket) -> None:
        """Answer until nobody asks any more, then close the listener."""
        gate = TokenGate(self.credentials)
        app = web.Application(middlewares=[gate.guard("job", lambda why: web.Response(status=401, text=why))])
        app.router.add_route("*", "/v1/{what:.*}", self._answer)
        async with gate.serve(application_of(app), listener):
            with suppress(TimeoutError):
                while True:
                    self._requested.clear()
                    async with asyncio.timeout(SILENCE_S):
                        await self._requested.wait()

    async def _answer(self, request: web.Request) -> web.Response:
        self._requested.set()
        what, outcome = request.match_info["what"], self.outcome
        if what == "status":
            end = {
                "result": outcome.state,
                "reason": outcome.reason,
                "error": outcome.error,
                "exit_code": outcome.exit_code,
            }
            return _json({"ended": end})
        if what == "heartbeat":
            try:
                beat = msgspec.json.decode(await read_body(request), type=Heartbeat)
            except (msgspec.DecodeError, BadBody) as error:
                return web.Response(status=400, text=f"Heartbeat: {error}")
            self.telemetry.add(beat.node, beat.telemetry, time.time())
            await self.telemetry.flush()
            return _json(Directive(self.epoch, _LAST, Action.LEAVE, outcome.reason))
        over = {"error": f"the job is over: {outcome.reason}"}
        # A node that comes now first probes for a master (see probe): it must hear that there was one.
        return _json(over, 404 if what.startswith("rounds/") else 409)


def _json(message: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(message), content_type="application/json")
