"""Rank 0's rendezvous store (torch's TCPStore) listens where the ranks look for it, not at every address.

torch takes no address to listen at, but a listener that is bound already (`master_listen_fd`): its rendezvous gets one
of ours. It asks for no token either, and has no place for one: who reaches that address may read and write the store.
Standard library only; what of torch is imported is looked up.
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
    """From now on, in this process; nothing where torch.distributed is not imported."""
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is not None and not isinstance(rendezvous.TCPStore, partial):
        rendezvous.TCPStore = partial(_create_restricted, rendezvous.TCPStore)


def _create_restricted(store: Callable[..., Any], **told: Any) -> Any:
    """Of `_create_c10d_store`, which every rendezvous by env:// and tcp:// comes to."""
    if told.get("is_master") and (listener := bind_listener(told["host_name"], told["port"], _is_one_machine())):
        told["master_listen_fd"] = listener.detach()
    return store(**told)


def bind_listener(host: str, port: int, one_machine: bool) -> socket.socket | None:
    """A listener at the address by which ranks know `host`; None where torch must listen at every address.

    That is where no address of that name is this machine's own (it is another's that forwards to it, say), where the
    name means loopback here and may mean something else on the job's other machines (Debian writes a machine's name
    into /etc/hosts so), and where a store of this process listens already, which torch then shares.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = list(dict.fromkeys((family, place) for family, _, _, _, place in found))
    means_the_same_to_all = one_machine or host == "localhost" or _is_address(host)
    if not means_the_same_to_all and any(_is_loopback(str(place[0])) for _, place in addresses):
        return None
    for family, place in addresses:
        with suppress(OSError):
            return socket.create_server(place, family=family, backlog=_BACKLOG)
    return None


def _is_one_machine() -> bool:
    """Are all ranks this node's?"""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
