"""The page's HTTP server: static files for everybody, the rest for holders of the token.

GET / and the files of `static`; GET /api/list and /api/run?place=P&name=N[&log=L] (server-sent events), POST /api/act.
The token is in the fragment of the address that `everstep ui` prints. A browser never sends a fragment; the page's
script sends the token in the Authorization header, which no other site's page and no form can do.
A request whose Host is not this server's is refused: a foreign name that resolves to 127.0.0.1 (DNS rebinding) would
make another site's page share the origin. Only files of `static` are scripts, by the Content-Security-Policy.
"""

import asyncio
import logging
import mimetypes
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from everstep.cli.ui.actions import act, command_of
from everstep.cli.ui.live_ranks import LiveRanks
from everstep.cli.ui.snapshot import snapshot
from everstep.cli.ui.sources import Entry, Source
from everstep.errors import BadInput
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import TokenGate, application_of

EVERY_S = 1.0
CLUSTER_EVERY_S = 3.0
REST = 8
"""After a read that took t seconds the next one waits at least REST x t: a long run is read less often."""
MOST_BODY = 4096
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""Raised for files that no run wrote in this form. Other runs are still shown."""
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

Send = Callable[[str, Any], Awaitable[None]]
"""Sends one event: its kind and its data."""


class Wish(msgspec.Struct, frozen=True):
    """What a button asks for."""

    place: str
    name: str
    what: str
    """scale | stop | retry | stacks"""
    job: str = ""
    nodes: int = 0


async def serve(sources: Mapping[str, Source], listener: socket.socket, token: str) -> None:
    """Serve until SIGTERM or until cancelled."""
    gate = TokenGate(Credentials(token), say=_log.debug)
    ends = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
    runner = application_of(_application(sources, gate, listener.getsockname()[1]), cancels=True)
    async with gate.serve(runner, listener):
        await ends.wait()


def _application(sources: Mapping[str, Source], gate: TokenGate, port: int) -> web.Application:
    page = Page(sources)
    app = web.Application(client_max_size=MOST_BODY, middlewares=[_guard(gate, port)])
    folder = Path(__file__).with_name("static")
    for path in folder.iterdir():
        app.router.add_get(f"/{path.name}" if path.name != "index.html" else "/", _file(path))
    app.router.add_get("/api/list", page.get_list)
    app.router.add_get("/api/run", page.get_run)
    app.router.add_post("/api/act", page.post_act)
    return app


def _file(path: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
    body, kind = path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream"

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": f"{kind}; charset=utf-8"})

    return answer


def _guard(gate: TokenGate, port: int) -> Any:
    """A middleware that refuses other names for this server, other sites, and requests for data without the token."""
    hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        is_admitted = gate.admits(request)
        origin, host = request.headers.get("Origin"), request.headers.get("Host", "")
        if host not in hosts:
            answer: web.StreamResponse = _error(403, "this server answers only as 127.0.0.1 or localhost")
        elif origin is not None and origin != f"http://{host}":
            answer = _error(403, "a page of another site may not call this server")
        elif request.path.startswith("/api/") and not is_admitted:
            answer = _error(401, "the token is missing: open the address that `everstep ui` printed")
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                answer = _error(error.status, error.reason)
            except BadInput as error:
                answer = _error(400, str(error))
        if not answer.prepared:
            answer.headers.update(HEADERS)
            if not is_admitted:
                answer.force_close()
        return answer

    return guard


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


class Page:
    """The requests of the page's script."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources

    def _source(self, place: str) -> Source:
        if place not in self._sources:
            raise BadInput(f"no place {place!r}")
        return self._sources[place]

    async def get_list(self, request: web.Request) -> web.StreamResponse:
        """All runs, then what changes."""
        stream, send = await _open_stream(request)
        await send("places", list(self._sources))
        await _together(*(self._send_list(send, source) for source in self._sources.values()))
        return stream

    async def _send_list(self, send: Send, source: Source) -> None:
        last_sent: dict[str, Entry] | None = None
        trouble = ""
        while True:
            began = time.monotonic()
            try:
                entries, error = await asyncio.to_thread(source.entries), ""
            except (BadInput, OSError) as problem:
                entries, error = last_sent or {}, str(problem)
            if error != trouble:
                await send("trouble", {"place": source.place, "text": error})
                trouble = error
            changed_entries = [
                entry for name, entry in entries.items() if last_sent is None or last_sent.get(name) != entry
            ]
            gone_names = [name for name in last_sent or () if name not in entries]
            if last_sent is None or changed_entries or gone_names:
                await send("runs", {"place": source.place, "changed": changed_entries, "gone": gone_names})
            last_sent = entries
            await asyncio.sleep(_pause(source, began))

    async def get_run(self, request: web.Request) -> web.StreamResponse:
        """A run: its data whenever they change, what its ranks do, and the lines of a log."""
        source, name = self._source(request.query.get("place", "")), request.query.get("name", "")
        if name not in await asyncio.to_thread(source.entries):
            raise BadInput(f"{source.place} has no run {name[:100]}")
        stream, send = await _open_stream(request)
        jobs: dict[str, LiveRanks] = {}
        parts = [self._send_run(send, source, name, jobs), self._send_logs(send, source, name)]
        if source.place == "here":
            parts.append(self._send_ranks(send, jobs))
        if log := request.query.get("log"):
            parts.append(self._send_log(send, source, name, log))
        await _together(*parts)
        return stream

    async def _send_run(self, send: Send, source: Source, name: str, jobs: dict[str, LiveRanks]) -> None:
        last_sent: object = None
        while True:
            began = time.monotonic()
            try:
                run_opened = await asyncio.to_thread(source.open, name)
                data = await asyncio.to_thread(snapshot, run_opened, time.time())
            except (BadInput, *BROKEN) as error:
                last_sent = None
                await send("trouble", {"place": source.place, "text": f"{name} cannot be shown now: {error}"})
            else:
                for job in data["jobs"]:
                    jobs.setdefault(job["name"], LiveRanks(job["job"]))
                if data != last_sent:
                    last_sent = data
                    await send("run", data)
            await asyncio.sleep(_pause(source, began))

    async def _send_ranks(self, send: Send, jobs: dict[str, LiveRanks]) -> None:
        last_sent: object = None
        while True:
            looks = {name: await asyncio.to_thread(live_ranks.look) for name, live_ranks in list(jobs.items())}
            if looks != last_sent:
                last_sent = looks
                await send("ranks", looks)
            await asyncio.sleep(EVERY_S)

    async def _send_logs(self, send: Send, source: Source, name: str) -> None:
        last_sent: object = None
        while True:
            began = time.monotonic()
            with suppress(BadInput):
                logs = await asyncio.to_thread(source.logs, name)
                if set(logs) != last_sent:
                    last_sent = set(logs)
                    await send("logs", logs)
            await asyncio.sleep(_pause(source, began))

    async def _send_log(self, send: Send, source: Source, name: str, log: str) -> None:
        texts, begins, trouble = source.follow(name, log), True, ""
        while True:
            try:
                text = await asyncio.to_thread(next, texts)
            except (BadInput, OSError) as error:
                texts, begins = source.follow(name, log), True
                if str(error) != trouble:
                    trouble = str(error)
                    await send("log", {"log": log, "text": f"{error}\n", "begins": False})
            else:
                if text:
                    await send("log", {"log": log, "text": text, "begins": begins})
                    begins, trouble = False, ""
            await asyncio.sleep(EVERY_S / 2 if source.place == "here" else CLUSTER_EVERY_S)

    async def post_act(self, request: web.Request) -> web.StreamResponse:
        """Do what a button asks for: `command`, `code` and `output` of the verb."""
        try:
            wish = msgspec.json.decode(await request.read(), type=Wish)
        except msgspec.MsgspecError as error:
            raise BadInput(str(error)) from None
        source = self._source(wish.place)
        if wish.name not in await asyncio.to_thread(source.entries):
            raise BadInput(f"{source.place} has no run {wish.name[:100]}")
        command = command_of(source, wish.name, wish.what, wish.job, wish.nodes)
        deed = await act(command, source.retry_log(wish.name) if wish.what == "retry" else None)
        return web.json_response(deed._asdict())


def _pause(source: Source, began: float) -> float:
    """Seconds until the next read."""
    return max(EVERY_S if source.place == "here" else CLUSTER_EVERY_S, REST * (time.monotonic() - began))


async def _open_stream(request: web.Request) -> tuple[web.StreamResponse, Send]:
    """A stream of server-sent events (HTML Living Standard, "Server-sent events")."""
    stream = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    await stream.prepare(request)

    async def send(kind: str, data: Any) -> None:
        await stream.write(b"event: " + kind.encode() + b"\ndata: " + _encode(data) + b"\n\n")

    return stream, send


async def _together(*parts: Awaitable[None]) -> None:
    """Run the parts until the browser has gone."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    except ConnectionError:
        pass
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
