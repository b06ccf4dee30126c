"""What a launch keeps on its machine: which nodes it has, and a store if the user named none.

A launch removes what killed launches of the same user left behind.
"""

import os
import secrets
import shutil
import socket
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from everstep.runtime.platform import debris
from everstep.runtime.platform.registry import Registration, Registry
from everstep.runtime.system import processes
from everstep.runtime.system.file_lock import hold_lock

_STARTING_S = 3600.0
"""A job's secret is kept for this long although it has no node yet."""


class LocalState:
    """One user's folder on this machine, `hold_process_folder`: owners and nodes are known by their pids."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes = folder / "nodes"
        self._stores = folder / "stores"

    def register(self, job: str, node: str, role: str) -> Registration:
        """Register this process as a node. Raises ValueError when another process here is that node."""
        registry = Registry(self._nodes / job)
        with self._lock():
            registered = registry.get(node)
            if registered is not None and registered.is_alive():
                raise ValueError(
                    f"{node} of job {job} already runs here, as process {registered.pid}; give each its own NODE_RANK"
                )
            began = processes.start_time(os.getpid()) or 0
            entry = Registration(node, job, role, socket.gethostname(), os.getpid(), began, round(time.time(), 3))
            registry.put(entry)
        return entry

    def unregister(self, entry: Registration) -> None:
        """Unregister this node; its files are already cleaned up."""
        with suppress(OSError), self._lock():  # The job has other nodes, or the whole folder is gone.
            Registry(self._nodes / entry.job).remove(entry)
            (self._nodes / entry.job).rmdir()

    def make_store_folder(self) -> Path:
        """Make a folder for a store, which is removed with its last owner."""
        folder = self._stores / secrets.token_hex(8)
        with self._lock():
            folder.mkdir(parents=True)
            add_owner(folder)
        return folder

    def sweep(self) -> None:
        """Remove what killed nodes and masters left behind."""
        with self._lock():  # A node that starts meanwhile would lose its files.
            for folder in self._nodes.glob("*/"):
                _sweep_nodes(folder)
            for folder in self._stores.glob("*/"):
                if not any(_is_alive(line) for line in _owners(folder)):
                    remove_store(folder)
            for token in self._folder.glob("*.token"):
                with suppress(FileNotFoundError):
                    if time.time() - token.stat().st_mtime > _STARTING_S and not (self._nodes / token.stem).exists():
                        token.unlink()

    def _lock(self) -> AbstractContextManager[int]:
        """Lock the folder against other launches of this user."""
        return hold_lock(self._folder)


def add_owner(folder: Path) -> None:
    """Keep the store at least as long as this process lives."""
    with folder.with_suffix(".owners").open("a") as file:
        file.write(f"{os.getpid()} {processes.start_time(os.getpid())}\n")


def remove_store(folder: Path) -> None:
    """Remove a store that nobody needs any more."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".owners").unlink(missing_ok=True)


def _sweep_nodes(folder: Path) -> None:
    registry = Registry(folder)
    for entry in registry.all():
        if not entry.is_alive():
            debris.remove_debris(entry.job, entry.name)
            registry.remove(entry)
    with suppress(OSError):  # Some nodes are alive.
        folder.rmdir()


def _owners(folder: Path) -> list[str]:
    try:
        return folder.with_suffix(".owners").read_text().splitlines()
    except OSError:
        return []


def _is_alive(line: str) -> bool:
    pid, _, began = line.partition(" ")
    return pid.isdigit() and began.isdigit() and processes.start_time(int(pid)) == int(began)
