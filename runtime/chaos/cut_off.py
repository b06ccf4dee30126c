"""A pod's network, or its way to the store, taken away from inside: `python -m everstep.runtime.chaos.cut_off network
SECONDS HOST:PORT`, or `store SECONDS s3://BUCKET/PREFIX`, which `beside_node` runs in a container of its own.

Once nothing reaches the address, it prints {"time": ..., "evidence": ...}, and after the seconds the way is free again.
Exit code 1, with one line on stderr: the fault did not fire. SIGTERM does not end it: that is sent when the pod has to
go, and a lost network does not come back for that. The rules go with the pod.
"""

import json
import os
import signal
import socket
import sys
import time
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from everstep.runtime.chaos import load, routes
from everstep.runtime.chaos.injector import Kind, NotFiredError
from everstep.runtime.store import StoreError

KINDS = (Kind.NETWORK, Kind.STORE)
_REACHED_S = 20.0
"""A server on a busy machine accepts within this time."""
_PORTS = {"http": 80, "https": 443}


def store_place(uri: str) -> tuple[str, int]:
    """(host, port) of the store, as this pod's variables have it. Raises StoreError."""
    from everstep.runtime.store.s3_settings import settings_of

    endpoint = urlsplit(settings_of(uri, os.environ).endpoint)
    assert endpoint.hostname, "`settings_of` has checked it"
    return endpoint.hostname, endpoint.port or _PORTS[endpoint.scheme]


def addresses_of(host: str, port: int) -> list[str]:
    """All that the name stands for. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(place[0]).partition("%")[0] for *_, place in found})


def _can_connect(host: str, port: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            load.connect(host, port)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)
        else:
            return True


def cut(kind: Kind, seconds: float, host: str, port: int) -> None:
    """Do it, and say when it began. Raises NotFiredError, OSError."""
    place = f"{host}:{port}"
    if not _can_connect(host, port, _REACHED_S):
        raise NotFiredError(f"{place} was already unreachable")
    if kind is Kind.NETWORK:
        fault: AbstractContextManager[None] = routes.everything_lost()
        what = f"no packet leaves or enters the pod: no connection to the master at {place}"
    else:
        addresses = addresses_of(host, port)
        fault, what = routes.lost(addresses, port), f"no connection to {place} ({', '.join(addresses)})"
    with fault:
        began = time.time()
        if _can_connect(host, port, 0):
            raise NotFiredError(f"{place} can still be reached")
        print(json.dumps({"time": began, "evidence": what}), flush=True)
        time.sleep(max(0.0, began + seconds - time.time()))


def main(words: list[str]) -> int:
    """Returns the exit code."""
    kind, seconds, target = words
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        if kind == Kind.STORE:
            host, port = store_place(target)
        else:
            name, _, number = target.rpartition(":")
            host, port = name.strip("[]"), int(number)
        cut(Kind(kind), float(seconds), host, port)
    except (NotFiredError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the pod's routes cannot be changed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
