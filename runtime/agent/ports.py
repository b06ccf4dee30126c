"""A port for torch's rendezvous that will still be free when rank 0 binds it, some milliseconds later."""

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_DEFAULT_EPHEMERAL = 32_768


def ephemeral_start(path: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> int:
    """The first port that the kernel hands out by itself: from there on a free one may be taken at any moment."""
    try:
        return int(path.read_text().split()[0])
    except OSError:
        return _DEFAULT_EPHEMERAL


def free_port(chance: random.Random, below: int | None = None) -> int:
    """A port that nobody is bound to on any address, outside the ephemeral range. Raises OSError after many tries."""
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
    raise OSError(f"no free port between {low} and {high} in 200 tries; is something holding them all?")
