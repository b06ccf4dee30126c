"""The node check of a launched job, on a node's side: be checked before joining, then stand by as a partner."""

import asyncio
import secrets
import socket
from collections.abc import Callable

import aiohttp

from runtime.diagnosis.errors import CoordinatorLostError, MeasuringError, UnknownNodeError
from runtime.diagnosis.measuring import Measuring, started
from runtime.diagnosis.node import check_node
from runtime.diagnosis.orders import Arrive
from runtime.diagnosis.serving import HttpLink
from runtime.diagnosis.switchbox import Box, SwitchboxError, missing_devices
from runtime.diagnosis.verdicts import Verdict

_PAUSE_S = 1.0


class Checked:
    """One node's part in the checks of its job."""

    def __init__(
        self, node: str, address: str, token: str, box: Box | None, master: Callable[[], tuple[str, int]], wait_s: float
    ) -> None:
        """`master` gives its address and port now; `wait_s`: so long it is tried to be reached for the first time."""
        # A node that comes again under its name is another one to the check.
        self._me = Arrive(f"{node}-{secrets.token_hex(3)}", socket.gethostname(), address)
        self._token = token
        self._box = box
        self._master = master
        self._wait_s = wait_s
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        """The first one. Raises NoQuorumError, RefusedError, MeasuringError, SwitchboxError, CoordinatorLostError."""

    async def run(self) -> None:
        """Be checked, then serve as a partner, until cancelled."""
        try:
            async with started() as measuring, aiohttp.ClientSession() as http:
                if self._box is not None and (why := missing_devices(self._box, await measuring.devices())):
                    raise SwitchboxError(why)
                self.verdict.set_result(await self._check(http, measuring, self._wait_s))
                while True:
                    try:
                        await self._check(http, measuring, self._wait_s)
                    except (CoordinatorLostError, UnknownNodeError):
                        await asyncio.sleep(_PAUSE_S)  # A new master is on its way.
        except (CoordinatorLostError, MeasuringError, OSError, ValueError, RuntimeError) as error:
            if self.verdict.done():
                return  # Nobody needs this partner any more, or it cannot be one.
            self.verdict.set_exception(error)

    async def _check(self, http: aiohttp.ClientSession, measuring: Measuring, wait_s: float) -> Verdict:
        host, port = self._master()
        link = HttpLink(http, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", self._token, arrival_s=wait_s)
        return (await check_node(link, self._me, measuring, self._box)).verdict
