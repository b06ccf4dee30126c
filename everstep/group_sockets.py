"""The TCP sockets that torch opened for the process groups of this round. Cutting them ends every wait for a peer.

gloo's own `abort` leaves a collective waiting for a peer that is alive but does not come (torch 2.15), and torch's
store has no abort at all. When their sockets are shut down, what waits at them raises within a millisecond, but for
the waits that gloo forgets (`gloo_waits`).
"""

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d

from everstep.runtime.watch.group_making import surround_group_making

_WATCHED = re.compile(r"^tfd:.* ino:([0-9a-f]+)", re.M)
"""A file in an epoll set, in /proc/self/fdinfo."""
_ERRORS = {
    "COMM_ERROR": "COMM_ERROR of",
    "REMOTE_ERROR": "REMOTE_ERROR of",
    "TIMEOUT": "a collective exceeded the timeout of",
}
"""Of torch's ErrorType, in words."""


class GroupSockets:
    """Notes which sockets appear while a group is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inodes, self._cut = set[str](), set[str]()
        self._present: set[str] | None = None
        """Those that were there before the group that is being made."""
        self.releasing = threading.Lock()
        """Who releases groups holds it, and none is aborted meanwhile: not every class of groups can bear both at once.
        What then waits for a peer is ended with the process, by the agent."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The sockets that are opened within the block are a group's. Blocks may be nested."""
        if self._present is not None:
            yield
            return
        self._present = set(_sockets())
        try:
            yield
        finally:
            with self._lock:
                self._inodes |= set(_sockets()) - self._present
                self._present = None

    def watch_new_groups(self) -> None:
        """Watch the making of every group from now on, also of those that the script makes. Called once a process."""
        with suppress(AttributeError):  # This torch makes its groups elsewhere.
            surround_group_making(distributed_c10d, self.watching)

    def cut(self) -> None:
        """Shut them down; abort groups of other backends, unless they are being released. Called in any thread."""
        with self._lock:
            inodes_to_cut, present = set(self._inodes), self._present
        for inode, file in _sockets().items():
            belongs_to_group = inode in inodes_to_cut or (present is not None and inode not in present)
            if belongs_to_group and _shut_down(inode, file):
                self._cut.add(inode)
        if self.releasing.acquire(blocking=False):
            try:
                _abort_groups()
            finally:
                self.releasing.release()

    def abort_no_more(self) -> None:
        """Called as the process ends: its exit releases the groups. Waits for an abort that is under way."""
        self.releasing.acquire()

    def cut_is_seen(self) -> bool:
        """Whether gloo has seen the end of all that was cut. A thread of its own tells who waits for a connection, then
        takes it out of the epoll set and closes it (`Pair::signalException`), and may come late. Called where `cut` is.
        """
        return self._cut.isdisjoint(_watched_sockets())

    def forget(self) -> None:
        """The groups are gone, also one whose making was interrupted."""
        with self._lock:
            self._inodes.clear()
            self._cut.clear()
            self._present = None


def _sockets() -> dict[str, int]:
    """This process's sockets: name of the inode -> file descriptor."""
    targets: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if (target := os.readlink(f"/proc/self/fd/{name}")).startswith("socket:"):
                targets[target] = int(name)
    return targets


def _watched_sockets() -> Iterator[str]:
    """The sockets in this process's epoll sets: names of inodes."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                for inode in _WATCHED.findall(Path(f"/proc/self/fdinfo/{name}").read_text()):
                    yield f"socket:[{int(inode, 16)}]"


def _shut_down(inode: str, file: int) -> bool:
    """Shut a TCP connection down, if the descriptor is still that socket's: another thread may have closed it, and
    another has its number then. A listener is left: gloo ends the process when its own fails. Returns whether it is
    down, perhaps by the peer's end."""
    with suppress(OSError), socket.socket(fileno=os.dup(file)) as duplicate:
        if f"socket:[{os.fstat(duplicate.fileno()).st_ino}]" != inode:
            return False
        is_tcp = duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM
        if is_tcp and not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with suppress(OSError):
                duplicate.shutdown(socket.SHUT_RDWR)
            return True
    return False


def communicator_error() -> str:
    """What a communicator of NCCL or its like says is wrong with it, as where its network fails, or where a rank does
    not join a collective within the group's timeout; empty: nothing. torch asks it while a collective is under way
    (ProcessGroupNCCL, "Watchdog"), and raises nothing where the script waits for the device. (Never run on a GPU.)"""
    for group in _device_groups():
        for device in group._device_types:
            with suppress(RuntimeError, AttributeError):
                error = group._get_backend(device).get_error()
                if error.name in _ERRORS:
                    return f"{_ERRORS[error.name]} {group.group_name or 'a group'} on {device.type}"
    return ""


def _device_groups() -> list[dist.ProcessGroup]:
    if not dist.is_initialized():
        return []
    return [group for group, (backend, _) in list(distributed_c10d._world.pg_map.items()) if backend != "gloo"]


def _abort_groups() -> None:
    """Abort the communicators of NCCL and its like, which use no socket that could be cut. (Never run on a GPU.)

    One that is still being made, in its group's first collective, is not reached: torch knows it only afterwards, and
    in its nonblocking mode waits under the lock that an abort needs (NCCLUtils.cpp, `waitReady`). The agent ends a
    process that does not leave it.

    All at a time: an abort waits for its kernels to end, and these may wait in their stream for those of another group.
    """
    threads = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in _device_groups()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _abort(group: dist.ProcessGroup) -> None:
    with suppress(RuntimeError, AttributeError):
        group.abort()
