"""Joining and leaving torch's process group: waits that torch does not do, or does with long pauses."""

import atexit
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from everstep.runtime.agent.tcp_store import restrict_torch_store

_KNOCK_EVERY_S = 0.002


def join(rank: int, backend: str, timeout: timedelta) -> None:
    """Join the default group (MASTER_ADDR, MASTER_PORT, as torchrun sets them); it is left when the process ends.

    Raises what torch.distributed raises.
    """
    restrict_torch_store()
    if rank and "MASTER_PORT" in os.environ:
        _wait_for_rank_0(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout.total_seconds())
    dist.init_process_group(backend, timeout=timeout)
    atexit.register(_leave)


def _wait_for_rank_0(address: str, port: int, seconds: float) -> None:
    """Until rank 0's store listens, or the time is over (then torch tells it).

    torch's own client, refused once, comes back only after a pause of up to a second: most of a recovery's time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=1.0) as met:
                if met.getsockname() != met.getpeername():  # On one machine a knock can meet itself: TCP allows it.
                    return
        except ConnectionRefusedError:
            time.sleep(_KNOCK_EVERY_S)
        except OSError:
            return  # Not a matter of waiting: torch says what is wrong.


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
        _wait_for_gloo()


def _wait_for_gloo(seconds: float = 1.0) -> None:
    """Until gloo's threads have let go of the last collective's tensors.

    They take the interpreter's lock for that; where it ends meanwhile, Python ends the thread and C++ the process
    (SIGABRT, "terminate called without an active exception"). torch joins them only with the last reference to their
    group, and one that DDP has used keeps some. An agent's workers never meet this: they end without finalization.
    """
    seen: list[list[str]] = []
    deadline = time.monotonic() + seconds
    while (now := [*_threads("pt_gloo_runloop")]) and time.monotonic() < deadline:
        if now == seen and all("S (sleeping)" in thread[0] for thread in now):
            return  # One that waits for the lock would have got it, and run, in the pause.
        seen = now
        time.sleep(0.01)


def _threads(name: str) -> Iterator[list[str]]:
    """For each thread of this process called so: its state and how often it was switched, as Linux tells them."""
    for path in sorted(Path("/proc/self/task").glob("*/status")):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = path.read_text().splitlines()
            if lines[0] == f"Name:\t{name}":
                yield [line for line in lines if line.startswith(("State:", "voluntary_ctxt", "nonvoluntary_ctxt"))]
