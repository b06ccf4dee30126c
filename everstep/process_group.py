"""Joins and leaves torch's process group, with waits that torch lacks or does with long pauses."""

import atexit
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from everstep.group_sockets import GroupSockets
from everstep.runtime import faults
from everstep.runtime.agent.tcp_store import restrict_torch_store

_KNOCK_EVERY_S = 0.002


def join(rank: int, backend: str, timeout: timedelta, sockets: GroupSockets | None = None) -> None:
    """Join the default group (MASTER_ADDR, MASTER_PORT as torchrun sets them); the process leaves it at exit.

    `sockets` notes the group's sockets. Raises RuntimeError if the process is in a group, and whatever
    torch.distributed raises.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process has joined its process group already: everstep.init and a function with everstep.main do it; "
            "call one of them, once in a process, and no init_process_group before it"
        )
    restrict_torch_store()
    if rank and "MASTER_PORT" in os.environ:
        _wait_for_rank_0(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout.total_seconds())
    with (sockets or GroupSockets()).watching():
        store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        faults.point("group.join")
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    atexit.unregister(_leave_for_good)
    atexit.register(_leave_for_good)


def _wait_for_rank_0(address: str, port: int, seconds: float) -> None:
    """Wait until rank 0's store listens, or the time is over (torch then reports it).

    After one refusal torch's own client pauses for up to a second, which would be most of a recovery's time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, port), timeout=1.0) as met:
                if met.getsockname() != met.getpeername():  # TCP lets a client connect to itself.
                    return
        except ConnectionRefusedError:
            time.sleep(_KNOCK_EVERY_S)
        except OSError:
            return  # Waiting cannot help: torch reports what is wrong.


def leave() -> None:
    """Leave every group, and what an interrupted `init_process_group` or `destroy_process_group` has left of them.

    torch numbers its groups: a process that counts otherwise than its peers would wait for them in vain."""
    world = distributed_c10d._world
    if not dist.is_initialized() and world.pg_map:
        distributed_c10d._update_default_pg(next(iter(world.pg_map)))
    if dist.is_initialized():
        dist.destroy_process_group()
    distributed_c10d._unregister_all_process_groups()  # pyright: ignore[reportPrivateImportUsage]
    world.group_count = 0


def _leave_for_good() -> None:
    """Leave every group before the interpreter ends."""
    leave()
    _wait_for_gloo()


def _wait_for_gloo(seconds: float = 1.0) -> None:
    """Wait until gloo's threads have released the last collective's tensors.

    Releasing needs the interpreter's lock. If the interpreter finalizes meanwhile, Python ends the thread and C++ the
    process (SIGABRT, "terminate called without an active exception"). torch joins the threads only with the last
    reference to their group, and DDP keeps some. An agent's workers never meet this: they exit without finalization.
    """
    before: list[list[str]] = []
    deadline = time.monotonic() + seconds
    while (now := [*_threads("pt_gloo_runloop")]) and time.monotonic() < deadline:
        if now == before and all("S (sleeping)" in thread[0] for thread in now):
            return  # A thread that waits for the lock would have got it, and run, during the pause.
        before = now
        time.sleep(0.01)


def _threads(name: str) -> Iterator[list[str]]:
    """For each thread of this process with that name: its state and its context switches, from /proc."""
    for path in sorted(Path("/proc/self/task").glob("*/status")):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = path.read_text().splitlines()
            if lines[0] == f"Name:\t{name}":
                yield [line for line in lines if line.startswith(("State:", "voluntary_ctxt", "nonvoluntary_ctxt"))]
