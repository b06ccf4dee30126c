"""The node check of a job, on the master's side: a node is checked before it may join.

It listens at the port after the master's. The first nodes are checked together. Later nodes are checked with healthy
nodes that train meanwhile (half a second of one core; a node that has joined leaves its devices alone). Nothing is
journaled: a new master checks again, and nodes that have joined stay in the job whatever that check finds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.http_link import serve_coordinator
from everstep.runtime.diagnosis.report import round_line, verdict_lines
from everstep.runtime.diagnosis.verdicts import Health, Verdict
from everstep.runtime.net.tls import Credentials
from everstep.runtime.net.token_gate import TokenGate, listen

TIMEOUT_S = 300.0
"""For a node's part in one round of the check."""
_POLL_S = 0.5
PARTNER_S = 5.0
"""A new node waits this long for a healthy partner; then it is checked alone."""


def node_check_port(master_port: int) -> int:
    """The port at which a master's nodes are checked."""
    return master_port + 1


class Admission(msgspec.Struct, frozen=True):
    """Parameters of the check of a job's nodes."""

    nodes: int
    """Number of nodes expected at first."""
    least: int
    """The check begins with this many nodes, once none has arrived for `window_s`."""
    window_s: float
    timeout_s: float
    """With fewer nodes after this time there is no check, and the nodes end."""
    exclude_straggler: bool = False


class Gate:
    """Decides which nodes are checked next, and with which partners. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._judged: set[str] = set()
        self._healthy: set[str] = set()
        self._fresh_since: float | None = None

    def next_nodes(self, ready: Iterable[str], now: float) -> tuple[list[str], list[str]]:
        """Nodes to check, and healthy partners for them: one each, and a spare in case one is gone by then.

        Returns no nodes if none is to be checked now. Nodes in `ready` wait to be checked, or stand by as partners.
        """
        ready = list(ready)
        fresh = [node for node in ready if node not in self._judged]
        partners = [node for node in ready if node in self._healthy][: len(fresh) + 1]
        if not fresh:
            self._fresh_since = None
            return [], []
        if self._fresh_since is None:
            self._fresh_since = now
        if partners or not self._healthy or now - self._fresh_since >= PARTNER_S:
            return fresh, partners
        return [], []

    def record_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Record the verdicts of a check. A partner that turned out to be unfit, or is gone, is no longer used as a
        partner; it goes on training."""
        for verdict in verdicts:
            was_judged = verdict.node in self._judged
            if verdict.health in (Health.FAULTY, Health.UNDECIDED) if was_judged else verdict.avoid:
                self._healthy.discard(verdict.node)
            elif not was_judged:
                self._healthy.add(verdict.node)
            self._judged.add(verdict.node)
        self._fresh_since = None


@contextlib.asynccontextmanager
async def serve_admission(
    admission: Admission, host: str, port: int, credentials: Credentials, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Check nodes while the block runs. Raises OSError if the port is not available."""
    coordinator = Coordinator(
        timeout_s=TIMEOUT_S,
        exclude_straggler=admission.exclude_straggler,
        on_round=lambda round_: say(round_line(round_)),
    )
    async with serve_coordinator(coordinator, listen(host, port), TokenGate(credentials)):
        checks = asyncio.create_task(_check_all(coordinator, admission, say))
        try:
            yield
        finally:
            checks.cancel()
            await asyncio.gather(checks, return_exceptions=True)


async def _check_all(coordinator: Coordinator, admission: Admission, say: Callable[[str], None]) -> None:
    if not await _wait_for_first_nodes(coordinator, admission):
        came = len(coordinator.ready_nodes())
        why = f"{came} of {admission.least} nodes joined the check within {admission.timeout_s:g} s"
        say(why)
        coordinator.call_off(why)
        return
    gate = Gate()
    while True:
        fresh, partners = gate.next_nodes(coordinator.ready_nodes(), time.monotonic())
        if not fresh:
            await coordinator.wait_for_event(_POLL_S)
            continue
        verdicts = await coordinator.check([*fresh, *partners], partners)
        for line in verdict_lines(
            [verdict for verdict in verdicts if verdict.node in fresh or verdict.health is Health.FAULTY]
        ):
            say(line)
        gate.record_verdicts(verdicts)


async def _wait_for_first_nodes(coordinator: Coordinator, admission: Admission) -> bool:
    """Wait for all nodes; or for enough, and then until no more arrive. Returns False if too few arrived in time."""
    began = changed_at = time.monotonic()
    before = 0
    while (arrived := len(coordinator.ready_nodes())) < admission.nodes:
        now = time.monotonic()
        if arrived > before:
            before, changed_at = arrived, now
        if arrived >= admission.least and now >= changed_at + admission.window_s:
            break
        if now >= began + admission.timeout_s:
            return arrived >= admission.least
        await coordinator.wait_for_event(_POLL_S)
    return True
