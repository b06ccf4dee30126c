"""Restricts rank 0's rendezvous store (torch's TCPStore) to the address where the ranks look for it.

torch accepts no address to listen at, but it accepts a bound listener (`master_listen_fd`), so we pass one of ours.
The store has no authentication: any process that reaches that address may read and write it.
Standard library only; torch's modules are looked up in sys.modules.
"""

import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

_BACKLOG = 4096


def restrict_torch_store() -> None:
    """Restrict the stores that this process creates from now on. Does nothing if torch.distributed is not imported."""
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is not None and not isinstance(rendezvous.TCPStore, partial):
        rendezvous.TCPStore = partial(_create_restricted, rendezvous.TCPStore)


def _create_restricted(store: Callable[..., Any], **arguments: Any) -> Any:
    """Replaces TCPStore in `_create_c10d_store`, through which every env:// and tcp:// rendezvous goes."""
    if arguments.get("is_master") and (
        listener := bind_listener(arguments["host_name"], arguments["port"], _is_one_machine())
    ):
        arguments["master_listen_fd"] = listener.detach()
    return store(**arguments)


def bind_listener(host: str, port: int, one_machine: bool) -> socket.socket | None:
    """A listener at the address by which the ranks know `host`; None if torch must listen at every address.

    That is so if no address of that name is this machine's own (another machine may forward to it), if the name means
    loopback here but may mean something else on the job's other machines (Debian writes a machine's name into
    /etc/hosts this way), and if a store of this process already listens there, which torch then shares.
    """
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = list(dict.fromkeys((family, place) for family, _, _, _, place in resolved))
    means_the_same_to_all = one_machine or host == "localhost" or _is_address(host)
    if not means_the_same_to_all and any(_is_loopback(str(place[0])) for _, place in addresses):
        return None
    for family, place in addresses:
        with suppress(OSError):
            return socket.create_server(place, family=family, backlog=_BACKLOG)
    return None


def _is_one_machine() -> bool:
    """Whether all ranks run on this node."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
