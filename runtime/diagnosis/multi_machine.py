"""A check across machines: each runs one node, and node 0 also runs the coordinator. All know one endpoint."""

import asyncio
import hashlib
import ipaddress
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

import aiohttp

from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.errors import NoQuorumError, RefusedError, UnknownNodeError
from everstep.runtime.diagnosis.evidence import Round
from everstep.runtime.diagnosis.http_link import HttpLink, serve_coordinator
from everstep.runtime.diagnosis.measurement_process import MeasurementProcess, start_measurement_process
from everstep.runtime.diagnosis.messages import Arrive, Over
from everstep.runtime.diagnosis.node import check_node
from everstep.runtime.diagnosis.switchbox import SwitchboxError, SwitchboxSpec, missing_devices
from everstep.runtime.diagnosis.verdicts import Verdict
from everstep.runtime.job.topology import order_by_place
from everstep.runtime.net.addresses import ELSEWHERE, is_loopback, source_address
from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.net.token_gate import TokenGate, listen
from everstep.runtime.system.cpus import usable_cpus

JOIN_WINDOW_S = 30.0
"""With enough nodes, but not all, the check begins this long after the last arrival."""
DISMISS_TIMEOUT_S = 10.0
"""How long node 0 waits until the others have received their verdicts."""
END_TIMEOUT_S = 2.0
"""How long requests in progress may take when node 0 is done."""
RESOLVE_TIMEOUT_S = 30.0
"""How long a name may take to appear in the DNS, and a route to exist."""


@dataclass(frozen=True)
class Endpoint:
    """The address at which node 0 listens."""

    host: str
    port: int

    @property
    def place(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def bind_host(self) -> str:
        """The address to bind: a loopback address itself; otherwise empty (any), as others must reach it."""
        try:
            return self.host if ipaddress.ip_address(self.host).is_loopback else ""
        except ValueError:
            return ""


@dataclass(frozen=True)
class MultiMachineCheck:
    """Options of a check on one machine."""

    endpoint: Endpoint
    rank: int
    min_nodes: int
    max_nodes: int
    token: str
    join_timeout_s: float = 600.0
    timeout_s: float = 300.0
    exclude_straggler: bool = False
    box: SwitchboxSpec | None = None
    topology: Mapping[str, str] = field(default_factory=dict)
    on_round: Callable[[Round], None] = lambda round_: None

    @cached_property
    def credentials(self) -> Credentials:
        """Those of all nodes. Between machines they use TLS."""
        return credentials_of(self.token, "check", tls=not self.endpoint.bind_host)


@dataclass(frozen=True)
class CheckOutcome:
    """The end of the check for this node; on node 0 also for all nodes."""

    over: Over
    verdicts: list[Verdict]
    rounds: list[Round]
    refused: int = 0
    """Number of requests without the token."""


def shared_token(rendezvous_id: str, port: int) -> str:
    """A token that all nodes can compute. It keeps out other checks by accident, not a stranger who knows the rule."""
    return hashlib.sha256(f"everstep check {rendezvous_id} {port}".encode()).hexdigest()


def node_name(rank: int) -> str:
    """The name of the node with that rank."""
    return f"node-{rank}"


async def check_machines(options: MultiMachineCheck) -> CheckOutcome:
    """Take part in a check, and run the coordinator on node 0.

    Raises RefusedError (wrong name or token, port in use), NoQuorumError (too few nodes arrived in time),
    CoordinatorLostError, MeasurementError, SwitchboxError.
    """
    me = Arrive(
        node_name(options.rank),
        socket.gethostname(),
        await _resolve_own_address(options.endpoint, options.join_timeout_s),
    )
    if options.rank == 0:
        return await _run_coordinator(options, me)
    async with _measurement_process(options.box) as measuring, aiohttp.ClientSession() as http:
        link = HttpLink(http, options.endpoint.place, options.credentials, arrival_s=options.join_timeout_s)
        while True:
            with suppress(UnknownNodeError):  # Node 0 has started again, and waits for all.
                return CheckOutcome(await check_node(link, me, measuring, options.box), [], [])


@asynccontextmanager
async def _measurement_process(box: SwitchboxSpec | None) -> AsyncIterator[MeasurementProcess]:
    async with start_measurement_process(threads=usable_cpus()) as measuring:
        if box is not None and (why := missing_devices(box, await measuring.count_devices())):
            raise SwitchboxError(why)
        yield measuring


async def _run_coordinator(options: MultiMachineCheck, me: Arrive) -> CheckOutcome:
    rounds: list[Round] = []

    def record(round_: Round) -> None:
        rounds.append(round_)
        options.on_round(round_)

    coordinator = Coordinator(timeout_s=options.timeout_s, exclude_straggler=options.exclude_straggler, on_round=record)
    gate = TokenGate(options.credentials)
    async with (
        serve_coordinator(coordinator, _open_listener(options.endpoint, me.address), gate, END_TIMEOUT_S),
        _measurement_process(options.box) as measuring,
    ):
        part = asyncio.create_task(check_node(coordinator, me, measuring, options.box))
        try:
            nodes = await _gather_nodes(coordinator, options)
            verdicts = await coordinator.check(nodes)
            over = await part
            await coordinator.wait_until_dismissed(nodes, DISMISS_TIMEOUT_S)
        except NoQuorumError as error:
            coordinator.call_off(str(error))
            raise
        finally:
            part.cancel()
            await asyncio.gather(part, return_exceptions=True)
    return CheckOutcome(over, verdicts, rounds, gate.refused)


async def _gather_nodes(coordinator: Coordinator, options: MultiMachineCheck) -> list[str]:
    """The participating nodes, in rank order or by switch. Raises NoQuorumError if too few arrive."""
    nodes = [node_name(rank) for rank in range(options.max_nodes)]
    deadline = time.monotonic() + options.join_timeout_s
    arrived = -1
    while True:
        enough = arrived >= options.min_nodes
        left_s = max(0.0, deadline - time.monotonic())
        missing = await coordinator.wait_for_arrivals(
            nodes, min(left_s, JOIN_WINDOW_S) if enough else left_s, more_than=arrived
        )
        before, arrived = arrived, len(nodes) - len(missing)
        if arrived == options.max_nodes or (
            arrived >= options.min_nodes and (arrived == before or time.monotonic() >= deadline)
        ):
            break
        if time.monotonic() >= deadline:
            raise NoQuorumError(
                f"{arrived} of {options.min_nodes} nodes came within {options.join_timeout_s:g} s; "
                f"missing: {', '.join(node for node in nodes if node in missing)}"
            )
    came = [node for node in nodes if node not in missing]
    if options.topology:
        came = order_by_place(came, lambda node: (options.topology.get(coordinator.address(node), ""),))
    return came


def _open_listener(endpoint: Endpoint, own_address: str) -> socket.socket:
    """Raises RefusedError."""
    try:
        return listen(endpoint.host if own_address == endpoint.host else endpoint.bind_host, endpoint.port)
    except OSError as error:
        why = f"{os.strerror(error.errno)}; choose another port" if error.errno else str(error)
        raise RefusedError(f"cannot listen at {endpoint.place}: {why}") from None


async def _resolve_own_address(endpoint: Endpoint, patience_s: float) -> str:
    """The IP address of this machine for other nodes: the source address of packets to the endpoint.

    If the endpoint's name resolves to loopback (PyTorchJob calls its first pod localhost), the machine's own name is
    resolved instead; if that is loopback, too (as in Debian's /etc/hosts), the way to any other machine counts. Raises
    RefusedError.
    """
    deadline = time.monotonic() + min(RESOLVE_TIMEOUT_S, patience_s)
    while True:
        try:
            address = await _source_address(endpoint.host, endpoint.port)
            break
        except UnicodeError as error:
            raise RefusedError(f"{endpoint.host}: is no name of a machine ({error})") from None
        except OSError as error:
            if time.monotonic() >= deadline:
                if isinstance(error, socket.gaierror):
                    what, mend = "cannot be resolved", "check the name"
                else:
                    what, mend = "no route from this machine", "check the address"
                raise RefusedError(f"{endpoint.host}: {what} ({error.strerror}); {mend}") from None
        await asyncio.sleep(1.0)
    if is_loopback(address) and not endpoint.bind_host:
        return await _address_for_others() or address
    return address


async def _address_for_others() -> str:
    """An address of this machine that is no loopback; empty: there is none."""
    with suppress(OSError):
        addresses = await asyncio.get_running_loop().getaddrinfo(socket.gethostname(), None, type=socket.SOCK_DGRAM)
        for *_, place in addresses:
            if not is_loopback(str(place[0])):
                return str(place[0])
    for elsewhere in ELSEWHERE:
        with suppress(OSError):
            return await _source_address(elsewhere, 9)
    return ""


async def _source_address(host: str, port: int) -> str:
    """This machine's on the route to what the name leads to. Raises OSError, UnicodeError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return source_address(str(addresses[0][4][0]), port)
