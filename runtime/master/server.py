"""The master's HTTP server: carries requests to the endpoints, and nothing else."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.job.brain import Refused
from runtime.master.endpoints import Endpoints

BACKLOG = 4096
"""Connections that may wait to be accepted: all agents of a job may come at once."""
KEEPALIVE_S = 75.0
BODY_S = 15.0
"""A body that has not come within so long, as long as an agent waits for an answer, does not come any more."""
END_S = 0.2
"""What is being answered when the master ends has so long."""

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serving(endpoints: Endpoints, listener: socket.socket, body_s: float = BODY_S) -> AsyncIterator[None]:
    """The endpoints can be reached at `listener` while the block runs; a body is waited for `body_s`."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        async def read() -> bytes:
            try:
                async with asyncio.timeout(body_s):
                    return await request.read()
            except TimeoutError:
                raise Refused(f"the body did not come within {body_s:g} s") from None
            except web.HTTPRequestEntityTooLarge as error:
                raise Refused(f"the body has more than {request.client_max_size} bytes") from error
            except (web.RequestPayloadError, ConnectionError) as error:
                raise Refused(f"the body cannot be read: {error}") from error

        status, body = await endpoints.answer(request.method, request.path, request.headers, read)
        return web.Response(body=body, status=status, content_type="application/json")

    # What is compressed is not looked into: our agents compress nothing, and a small body stays small.
    server = web.Server(handle, access_log=None, logger=_log, auto_decompress=False, keepalive_timeout=KEEPALIVE_S)
    runner = web.ServerRunner(server, shutdown_timeout=END_S)
    await runner.setup()
    _log.addFilter(_is_ours)
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()
        _log.removeFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Bytes that are no HTTP are the fault of whoever sent them (a port scan): answered with 400, and not told."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
