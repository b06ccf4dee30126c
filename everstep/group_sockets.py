"""The TCP sockets that torch opened for the process groups of this round. Cutting them ends every wait for a peer.

gloo's own `abort` leaves a collective waiting for a peer that is alive but does not come (torch 2.15), and torch's
store has no abort at all. When their sockets are shut down, what waits at them raises within a millisecond, but for
the waits that gloo forgets (`gloo_waits`).
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed import distributed_c10d

from everstep.runtime.watch.group_making import surround_group_making


class GroupSockets:
    """Notes which sockets appear while a group is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inodes = set[str]()
        self._present: set[str] | None = None
        """Those that were there before the group that is being made."""

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
        """Shut them down, and abort the groups of other backends. Called in any thread."""
        with self._lock:
            inodes_to_cut, present = set(self._inodes), self._present
        for inode, file in _sockets().items():
            if inode in inodes_to_cut or (present is not None and inode not in present):
                _shut_down(inode, file)
        _abort_groups()

    def forget(self) -> None:
        """The groups are gone."""
        with self._lock:
            self._inodes.clear()


def _sockets() -> dict[str, int]:
    """This process's sockets: name of the inode -> file descriptor."""
    targets: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if (target := os.readlink(f"/proc/self/fd/{name}")).startswith("socket:"):
                targets[target] = int(name)
    return targets


def _shut_down(inode: str, file: int) -> None:
    """Shut a TCP connection down, if the descriptor is still that socket's: another thread may have closed it, and the
    next round's connection has its number then. A listener is left: gloo ends the process when its own fails."""
    with suppress(OSError), socket.socket(fileno=os.dup(file)) as duplicate:
        if f"socket:[{os.fstat(duplicate.fileno()).st_ino}]" != inode:
            return
        is_tcp = duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM
        if is_tcp and not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            duplicate.shutdown(socket.SHUT_RDWR)


def _abort_groups() -> None:
    """Abort the communicators of NCCL and its like, which use no socket that could be cut. (Never run on a GPU.)"""
    if not dist.is_initialized():
        return
    for group, (backend, _) in list(distributed_c10d._world.pg_map.items()):
        if backend != "gloo":
            with suppress(RuntimeError, AttributeError):
                group.abort()
