"""How the nodes of a job find each other: the endpoint's address, the host of the master, the job's secret.

"Is the endpoint this machine?" is decided as torch's c10d backend does (torch.distributed.elastic.rendezvous.utils).
"""

import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from everstep.runtime.net.addresses import ELSEWHERE, is_loopback, source_address
from everstep.runtime.net.token import TOKEN_VARIABLE, shared_token
from everstep.runtime.system.own_folder import hold_process_folder

_RESOLVE_S = 5.0
_PAUSE_S = 0.5


def resolve(host: str, port: int, pause: Callable[[float], None] = time.sleep) -> str:
    """The address of `host`, retried for some seconds. Raises ValueError when it has none."""
    tries = int(_RESOLVE_S / _PAUSE_S)
    for tries_left in reversed(range(tries)):
        try:
            return str(socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)[0][4][0])
        except OSError as error:
            if not tries_left:
                raise ValueError(
                    f"{host}:{port}: the master's name cannot be resolved ({error}); check the name"
                ) from None
            pause(_PAUSE_S)
    raise AssertionError("at least one try is made")


def is_this_machine(host: str) -> bool:
    """Is `host` a name or an address of this machine?"""
    if host in ("localhost", socket.gethostname()):
        return True
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return True
    return any(is_local(address) for address in _addresses(host))


def is_local(address: str) -> bool:
    """Can this machine listen on that address?"""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def own_address(towards: str, port: int) -> str:
    """This machine's address on the route to `towards`. Raises ValueError when there is no route."""
    try:
        return source_address(towards, port or 9)
    except OSError as error:
        raise ValueError(f"{towards}: no route from this machine ({error.strerror})") from None


def common_address(host: str, port: int, local_addr: str) -> str:
    """The address of `host` that all machines of a job can use.

    A machine's own name may be a loopback address on it alone (Debian writes 127.0.1.1 into /etc/hosts): then
    `local_addr`, or else this machine's address on its default route. Raises ValueError if there is none.
    """
    address = resolve(host, port)
    if not is_loopback(address) or host == address or "localhost" in host:
        return address
    if local_addr:
        return resolve(local_addr, port)
    for elsewhere in ELSEWHERE:
        with suppress(ValueError, OSError):
            return own_address(elsewhere, port)
    why = f"on this machine it is {address}, which no other machine reaches"
    raise ValueError(f"{host}: {why}; give --local-addr with an address that the others reach")


def token_of(environment: Mapping[str, str], address: str | None, job: str) -> str:
    """The job's secret: the user's, or one made for this machine alone.

    Raises ValueError if several machines need one and the user has set none.
    """
    token = environment.get(TOKEN_VARIABLE, "")
    if token:
        return token
    if address is None:
        return secrets.token_urlsafe(32)
    if not is_loopback(address):
        raise ValueError(
            f"{TOKEN_VARIABLE} is not set: nodes on several machines need a common secret; "
            f"set the same on all of them, for example {TOKEN_VARIABLE}=$(openssl rand -hex 16)"
        )
    return shared_token(hold_process_folder() / f"{job}.token")


def _addresses(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except OSError:
        return set()
