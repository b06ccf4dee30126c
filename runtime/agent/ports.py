"""Ports that are still free when another process binds them some milliseconds later."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_LOWEST = 10_000
_DEFAULT_EPHEMERAL = 32_768


def ephemeral_start(path: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """The first port of the kernel's ephemeral range; a free port from there on may be taken at any moment."""
    try:
        return int(path.read_text().split()[0])
    except OSError:
        return _DEFAULT_EPHEMERAL


def free_port(chance: random.Random, below: int | None = None) -> int:
    """A port outside the ephemeral range that is free on every address. Raises OSError after 200 tries."""
    end = below if below is not None else ephemeral_start()
    low, high = (_LOWEST, end) if end > _LOWEST + 1000 else (61_000, 65_536)
    for _ in range(200):
        port = chance.randrange(low, high)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {low} and {high} in 200 tries; is another program using all of them?")


def free_port_pair(chance: random.Random) -> int:
    """The first of two consecutive free ports: one for a master, the next for the check of its nodes."""
    while True:
        port = free_port(chance)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port + 1))
            return port
