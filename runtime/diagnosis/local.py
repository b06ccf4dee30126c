"""Every node of a job checked as a process of this machine: torch is imported once, each node is a fork.

The forks die with their parent (PR_SET_PDEATHSIG). Only for a process that has one thread: `check_here` refuses
otherwise, since a fork would inherit locks that nobody unlocks.
"""

# torch.distributed documents its stores but does not list them in __all__:
# pyright: reportPrivateImportUsage=false

import ctypes
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NoReturn

import msgspec

from runtime.diagnosis.check import OWN, measure
from runtime.diagnosis.pairs import Measurement, groups

PR_SET_PDEATHSIG = 1
_decode = msgspec.json.Decoder(Measurement)


@dataclass
class _Child:
    """A node's process, and what it told so far."""

    pid: int
    pipe: int
    group: int
    rank: int
    last: Measurement
    text: bytes = b""
    status: int | None = None
    """As os.waitstatus_to_exitcode has it; None while it runs."""


def prepare() -> None:
    """Import what the nodes need, with one thread. Before any other import of numpy or torch in this process."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch
    import torch.distributed

    torch.set_num_threads(1)


def check_here(hosts: Sequence[str], time_limit_s: float) -> list[list[Measurement]]:
    """The measurements of each group of nodes, one node for each of `hosts`. Ends after `time_limit_s` at the latest.

    Raises RuntimeError when this process has more than one thread.
    """
    prepare()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"the node check forks, but this process has {threads} threads")
    deadline = time.monotonic() + time_limit_s
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    children = [
        _fork(host, group, rank, len(members), port, time_limit_s * 0.4)
        for group, members in enumerate(groups(hosts))
        for rank, host in enumerate(members)
    ]
    try:
        _serve(listener, children, deadline)
    finally:
        for child in children:
            if child.status is None:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
            os.close(child.pipe)
    grouped: dict[int, list[Measurement]] = {}
    for child in children:
        grouped.setdefault(child.group, []).append(_outcome(child, time_limit_s))
    return list(grouped.values())


def _fork(host: str, group: int, rank: int, world: int, port: int, timeout_s: float) -> _Child:
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.set_blocking(reading, False)
        return _Child(pid, reading, group, rank, Measurement(host, host))
    try:
        _be_a_node(host, group, rank, world, port, timeout_s, writing, parent)
    finally:
        os._exit(70)


def _be_a_node(
    host: str, group: int, rank: int, world: int, port: int, timeout_s: float, pipe: int, parent: int
) -> NoReturn:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(70)
    from torch.distributed import PrefixStore, TCPStore

    wait = timedelta(seconds=timeout_s)
    shared = TCPStore("127.0.0.1", port, is_master=False, timeout=wait, wait_for_workers=False)

    def tell(told: Measurement) -> None:
        os.write(pipe, msgspec.json.encode(told) + b"\n")

    measure(host, host, rank, world, PrefixStore(f"group-{group}", shared), timeout_s, tell)
    os._exit(0)


def _serve(listener: socket.socket, children: list[_Child], deadline: float) -> None:
    """Hold the store that the groups share, and hear the nodes, until each has ended or the time is up."""
    from torch.distributed import PrefixStore, TCPStore

    port = listener.getsockname()[1]
    descriptor = listener.detach()  # the store closes it
    store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor, multi_tenant=False
    )
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                child: _Child = key.data
                if data := os.read(child.pipe, 1 << 16):
                    _hear(child, data)
                    continue
                selector.unregister(child.pipe)
                child.status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
                if child.status:  # its partners need not wait for it
                    PrefixStore(f"group-{child.group}", store).set(OWN.format(rank=child.rank), "failed")


def _hear(child: _Child, data: bytes) -> None:
    *lines, child.text = (child.text + data).split(b"\n")
    if lines:
        child.last = _decode.decode(lines[-1])


def _outcome(child: _Child, time_limit_s: float) -> Measurement:
    if child.status == 0:
        return child.last
    if child.status is None:
        why = f"did not end within {time_limit_s:g} s"
    elif child.status < 0:
        why = f"its check was ended by {signal.Signals(-child.status).name}"
    else:
        why = f"its check ended with exit code {child.status}"
    return replace(child.last, error=child.last.error or why, died=True)
