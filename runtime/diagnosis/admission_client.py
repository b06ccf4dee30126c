"""The node check of a job, on a node's side: be checked before joining, then stand by as a partner."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress

import aiohttp

from everstep.runtime.diagnosis.errors import CoordinatorLostError, MeasurementError, NoQuorumError, UnknownNodeError
from everstep.runtime.diagnosis.http_link import HttpLink
from everstep.runtime.diagnosis.measurement_process import MeasurementProcess
from everstep.runtime.diagnosis.messages import Arrive, Over
from everstep.runtime.diagnosis.node import Link, follow_orders, wait_for_order
from everstep.runtime.diagnosis.switchbox import SwitchboxError, SwitchboxSpec, missing_devices
from everstep.runtime.diagnosis.verdicts import Verdict
from everstep.runtime.net.tls import Credentials

_RETRY_PAUSE_S = 1.0
_PATIENCE_S = 30.0
"""One address is tried for this long before the check's address is looked up again."""

StartMeasuring = Callable[[], AbstractAsyncContextManager[MeasurementProcess]]


class AdmissionClient:
    """One node's part in the checks of its job."""

    def __init__(
        self,
        node: str,
        host: str,
        address: str,
        credentials: Credentials,
        where: Callable[[], Awaitable[tuple[str, int]]],
        wait_s: float,
        box: SwitchboxSpec | None = None,
    ) -> None:
        """`where` returns the check's present address and port, or raises. `wait_s`: how long to try while nobody
        answers."""
        # To the check, a node that arrives again under its old name is a new node.
        self._me = Arrive(f"{node}-{secrets.token_hex(3)}", host, address)
        self._credentials = credentials
        self._box = box
        self._where = where
        self._wait_s = wait_s
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        """The first verdict. Raises NoQuorumError, RefusedError, MeasurementError, SwitchboxError,
        CoordinatorLostError."""

    async def run(
        self, prepare: Callable[[], AbstractAsyncContextManager[StartMeasuring]], say: Callable[[str], None]
    ) -> None:
        """Be checked, then serve as a partner, until cancelled. `say` gets why it is one no longer, in one line.

        `prepare` gives what starts the process that measures: for each check, once its first order is here.
        """
        try:
            async with prepare() as start, aiohttp.ClientSession() as http:
                await self._refuse_missing_devices(start)
                self.verdict.set_result(await self._first_verdict(http, start))
                while True:
                    try:
                        await self._take_part(await self._arrive(http, self._wait_s), start)
                    except (CoordinatorLostError, UnknownNodeError):
                        await asyncio.sleep(_RETRY_PAUSE_S)  # A new master will follow.
        except (CoordinatorLostError, UnknownNodeError, MeasurementError, OSError, ValueError, RuntimeError) as error:
            if not self.verdict.done():
                self.verdict.set_exception(error)
            elif not isinstance(error, NoQuorumError):  # A check that is called off needs no partner.
                say(f"this node is no longer a partner in node checks: {str(error) or type(error).__name__}")

    async def _refuse_missing_devices(self, start: StartMeasuring) -> None:
        if self._box is None:
            return
        async with start() as measuring:
            if why := missing_devices(self._box, await measuring.count_devices()):
                raise SwitchboxError(why)

    async def _first_verdict(self, http: aiohttp.ClientSession, start: StartMeasuring) -> Verdict:
        """A new master starts the check again, maybe elsewhere. Raises CoordinatorLostError if none has answered for
        `wait_s`."""
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                link = await self._arrive(http, deadline - time.monotonic())
            except CoordinatorLostError:
                if time.monotonic() >= deadline:
                    raise
            else:
                with suppress(CoordinatorLostError, UnknownNodeError):
                    return await self._take_part(link, start)
                deadline = time.monotonic() + self._wait_s
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _arrive(self, http: aiohttp.ClientSession, wait_s: float) -> HttpLink:
        """Raises CoordinatorLostError if nobody answers."""
        try:
            host, port = await self._where()
        except (OSError, RuntimeError, KeyError) as error:
            raise CoordinatorLostError(f"the address of the check is unknown: {error}") from error
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        link = HttpLink(http, address, self._credentials, arrival_s=min(wait_s, _PATIENCE_S))
        await link.arrive(self._me)
        return link

    async def _take_part(self, link: Link, start: StartMeasuring) -> Verdict:
        """Be checked; a node that has its first verdict may be training, and leaves its devices alone."""
        name, joined = self._me.node, self.verdict.done()
        order = await wait_for_order(link, name)
        if isinstance(order, Over):
            return order.verdict
        async with AsyncExitStack() as stack:
            asking = asyncio.create_task(_keep_asking(link, name, order.number))
            try:
                measuring = await stack.enter_async_context(start())
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            if joined:
                measuring.hide_devices(name)
            box = None if joined else self._box
            return (await follow_orders(link, self._me, order, measuring, box)).verdict


async def _keep_asking(link: Link, node: str, last_number: int) -> None:
    """Ask for newer orders without following them, so that the coordinator knows that the node lives: importing torch
    may take longer than it waits for a silent one."""
    while True:
        last_number = (await wait_for_order(link, node, last_number)).number
