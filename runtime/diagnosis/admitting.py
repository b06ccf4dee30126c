"""The node check of a job, on the master's side: who comes is checked before it may join.

It listens at the port after the master's. All that come at first are checked together; who comes later, with a healthy
node that trains meanwhile (the work is half a second of one core). Nothing is journaled: a new master checks again, and
nodes that have joined already stay whatever it finds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import msgspec
from aiohttp import web

from runtime.diagnosis.coordinator import Coordinator
from runtime.diagnosis.orders import Arrive
from runtime.diagnosis.serving import Guard
from runtime.diagnosis.telling import round_line, verdict_lines
from runtime.diagnosis.verdicts import Verdict

TIMEOUT_S = 300.0
"""For a node's part in one round of the check."""
_LOOK_S = 0.5
_PARTNER_S = 5.0
"""So long a new node waits for a healthy one to work with; then it is checked alone."""


def check_port(master_port: int) -> int:
    """Where the nodes of a master are checked."""
    return master_port + 1


class Admission(msgspec.Struct, frozen=True):
    """What a check of a job's nodes is like."""

    nodes: int
    """So many are expected at first."""
    least: int
    """With so many the check begins, when no more come for `window_s`."""
    window_s: float
    timeout_s: float
    """Without the least for so long there is no check: nodes end."""
    exclude_straggler: bool = False


class _Door(Coordinator):
    """A coordinator that says who has come."""

    def __init__(self, admission: Admission, say: Callable[[str], None]) -> None:
        super().__init__(
            timeout_s=TIMEOUT_S,
            exclude_straggler=admission.exclude_straggler,
            on_round=lambda told: say(round_line(told)),
        )
        self._came: dict[str, None] = {}
        self._changed = asyncio.Event()

    async def arrive(self, arrive: Arrive) -> None:
        """A node is ready, or stands by."""
        await super().arrive(arrive)
        self._came[arrive.node] = None
        self._changed.set()

    def ready(self) -> list[str]:
        """Who came, was not checked since, and asks for orders now: it is alive. In the order of coming."""
        return [node for node in self._came if self.waits(node)]

    async def check(self, nodes: Sequence[str], trusted: Iterable[str] = ()) -> list[Verdict]:
        """Check these; each must come again to be checked again."""
        for node in nodes:
            del self._came[node]
        return await super().check(nodes, trusted)

    async def sleep(self, seconds: float) -> None:
        """Until somebody comes, at most so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


@contextlib.asynccontextmanager
async def admitting(
    admission: Admission, host: str, port: int, token: str, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Nodes are checked while the block runs. Raises OSError when the port cannot be had."""
    door = _Door(admission, say)
    runner = web.AppRunner(Guard(token).application(door), access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        checks = asyncio.create_task(_check_all(door, admission, say))
        try:
            yield
        finally:
            checks.cancel()
            await asyncio.gather(checks, return_exceptions=True)
    finally:
        await runner.cleanup()


async def _check_all(door: _Door, admission: Admission, say: Callable[[str], None]) -> None:
    if not await _first_nodes(door, admission):
        why = f"{len(door.ready())} of {admission.least} nodes came to be checked within {admission.timeout_s:g} s"
        say(why)
        door.call_off(why)
        return
    healthy: set[str] = set()
    seen = time.monotonic()
    while True:
        fresh = [node for node in door.ready() if node not in healthy]
        partner = [node for node in door.ready() if node in healthy][:1]
        if not fresh:
            seen = time.monotonic()
        elif partner or not healthy or time.monotonic() - seen > _PARTNER_S:
            verdicts = await door.check([*fresh, *partner], partner)
            for line in verdict_lines([verdict for verdict in verdicts if verdict.node not in partner]):
                say(line)
            healthy.update(verdict.node for verdict in verdicts if not verdict.avoid)
            continue
        await door.sleep(_LOOK_S)


async def _first_nodes(door: _Door, admission: Admission) -> bool:
    """Wait for all nodes; or for enough, and then for nobody more to come. False when too few came in time."""
    began = changed = time.monotonic()
    before = 0
    while (here := len(door.ready())) < admission.nodes:
        now = time.monotonic()
        if here > before:
            before, changed = here, now
        if here >= admission.least and now >= changed + admission.window_s:
            break
        if now >= began + admission.timeout_s:
            return here >= admission.least
        await door.sleep(_LOOK_S)
    return True
