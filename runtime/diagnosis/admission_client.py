"""The node check of a job, on a node's side: be checked before joining, then stand by as a partner."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import aiohttp

from everstep.runtime.diagnosis.errors import CoordinatorLostError, MeasurementError, NoQuorumError, UnknownNodeError
from everstep.runtime.diagnosis.http_link import HttpLink
from everstep.runtime.diagnosis.measurement_process import MeasurementProcess
from everstep.runtime.diagnosis.messages import Arrive, Over
from everstep.runtime.diagnosis.node import follow_orders, wait_for_order
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
        """`where` returns the check's present address and port, or raises. `wait_s`: how long to try at first."""
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
                        await self._check(http, start, self._wait_s)
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
        """A new master starts the check again, maybe elsewhere. Raises CoordinatorLostError when the time is over."""
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                return await self._check(http, start, deadline - time.monotonic())
            except (CoordinatorLostError, UnknownNodeError):
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _check(self, http: aiohttp.ClientSession, start: StartMeasuring, wait_s: float) -> Verdict:
        try:
            host, port = await self._where()
        except (OSError, RuntimeError, KeyError) as error:
            raise CoordinatorLostError(f"the address of the check is unknown: {error}") from error
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        link = HttpLink(http, address, self._credentials, arrival_s=min(wait_s, _PATIENCE_S))
        await link.arrive(self._me)
        order = await wait_for_order(link, self._me.node)
        if isinstance(order, Over):
            return order.verdict
        async with start() as measuring:
            return (await follow_orders(link, self._me, order, measuring, self._box)).verdict
