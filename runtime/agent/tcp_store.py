"""Restricts rank 0's rendezvous store (torch's TCPStore) to the address where the ranks look for it, for its lifetime.

torch accepts no address to listen at, but it accepts a bound listener (`master_listen_fd`), so we pass one of ours.
The store has no authentication: any process that reaches that address may read and write it.

torch closes rank 0's store with its process group. A script that makes its group again would race with that: a rank
ahead of rank 0 still finds the old store, which then closes under it (a broken pipe), or reads the old group's keys
there and waits forever. So a process keeps its store, and each further group has keys of its own in it. If the user
chose the port, the same holds between the rounds of a process that survives them: rank 0 keeps its server, and each
round has keys of its own.
Standard library only; torch's modules are looked up in sys.modules.
"""

import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from everstep.runtime.net.addresses import is_loopback
from everstep.runtime.watch import in_worker
from everstep.runtime.watch.board_fields import GROUP_PHASE

_BACKLOG = 4096


@dataclass
class _KeptStore:
    """The store of this process's latest rendezvous, kept until its round is over."""

    place: tuple[str, int, str | None]
    store: Any
    prefix: Callable[[str, Any], Any]
    given: int = 1

    def next(self) -> Any:
        """For a further group: each rank counts its own, and all make their groups in the same order."""
        self.given += 1
        return self.prefix(f"group_{self.given}", self.store)


def restrict_torch_store() -> None:
    """Restrict the stores that this process creates from now on. Does nothing if torch.distributed is not imported."""
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is not None and not isinstance(rendezvous.TCPStore, _RestrictedStore):
        prefix = sys.modules["torch.distributed"].PrefixStore
        rendezvous.TCPStore = _RestrictedStore(rendezvous.TCPStore, prefix)


class _RestrictedStore:
    """Replaces TCPStore in `_create_c10d_store`, through which every env:// and tcp:// rendezvous goes."""

    def __init__(self, create: Callable[..., Any], prefix: Callable[[str, Any], Any]) -> None:
        self._create = create
        self._prefix = prefix
        self._kept: _KeptStore | None = None
        self._server: tuple[str, int, Any] | None = None
        """Where this process serves, and the store that it serves with."""

    def __call__(self, **arguments: Any) -> Any:
        host, port, is_master = arguments["host_name"], arguments["port"], bool(arguments.get("is_master"))
        place = host, port, os.environ.get("EVERSTEP_ROUND")
        if self._kept and self._kept.place == place:
            return self._kept.next()
        self._kept = None
        if self._server and (not is_master or self._server[:2] != (host, port)):
            self._server = None  # Another process may serve there now.
        if is_master and not self._server and (listener := bind_listener(host, port, _is_one_machine())):
            arguments["master_listen_fd"] = listener.detach()
        with in_worker.doing(GROUP_PHASE):  # The first store waits until all ranks have connected.
            store = self._create(**arguments)  # A further one of this process at the same port shares the server.
        if is_master and not self._server:
            self._server = host, port, store
        if place[2] is not None:
            store = self._prefix(f"round_{place[2]}", store)
        self._kept = _KeptStore(place, store, self._prefix)
        return store


def bind_listener(host: str, port: int, one_machine: bool) -> socket.socket | None:
    """A listener at the address by which the ranks know `host`; None if torch must listen at every address.

    That is so if no address of that name is this machine's own (another machine may forward to it), if the name means
    loopback here but may mean something else on the job's other machines (Debian writes a machine's name into
    /etc/hosts this way), and if a store of this process already listens there, which torch then shares.
    """
    try:
        addresses_found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = list(dict.fromkeys((family, place) for family, _, _, _, place in addresses_found))
    means_the_same_to_all = one_machine or host == "localhost" or _is_address(host)
    if not means_the_same_to_all and any(is_loopback(str(place[0])) for _, place in addresses):
        return None
    for family, place in addresses:
        with suppress(OSError):
            return socket.create_server(place, family=family, backlog=_BACKLOG)
    return None


def _is_one_machine() -> bool:
    """Whether all ranks run on this node."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
