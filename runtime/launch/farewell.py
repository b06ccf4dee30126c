"""The last words of a master: its job is over, and nodes that come by themselves must still hear it.

Nobody can look whether such nodes have ended. Each that still asks is told to leave, and then asks how the job ended;
who has heard it says nothing more, so that silence means that nobody is left.
"""

import asyncio
import hmac
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from runtime.job.messages import Action, Directive, Heartbeat
from runtime.master import Outcome

SILENCE_S = 4.0
"""An agent that waits for its master asks more often."""
_LAST = 1 << 40
"""A directive's number that no agent has seen."""


@dataclass
class Farewell:
    """Answers for a job that is over."""

    outcome: Outcome
    epoch: int
    token: str
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, host: str, port: int) -> None:
        """Until nobody asks any more. Raises OSError when the address is taken."""
        app = web.Application()
        app.router.add_route("*", "/v1/{what:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, reuse_address=True).start()
            with suppress(TimeoutError):
                while True:
                    self._asked.clear()
                    async with asyncio.timeout(SILENCE_S):
                        await self._asked.wait()
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self._asked.set()
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            return web.Response(status=401, text="the Authorization header has not this job's token")
        what, told = request.match_info["what"], self.outcome
        if what == "status":
            end = {"result": told.state, "reason": told.reason, "error": told.error, "exit_code": told.exit_code}
            return _json({"ended": end})
        if what == "heartbeat":
            try:
                msgspec.json.decode(await request.read(), type=Heartbeat)
            except msgspec.DecodeError as error:
                return web.Response(status=400, text=f"Heartbeat: {error}")
            return _json(Directive(self.epoch, _LAST, Action.LEAVE, told.reason))
        return web.Response(status=409, text=f"the job is over: {told.reason}")


def _json(message: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(message), content_type="application/json")
