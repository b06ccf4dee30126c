"""The nodes that a run has on this machine: one file per node, `<run folder>/nodes/<job>/<node>.json`.

Jobs that train at once in one run have nodes of the same names.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.runtime.platform import Node
from everstep.runtime.system import atomic
from everstep.runtime.system.processes import start_time

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Registration(msgspec.Struct, frozen=True):
    """A node that was started. A pair of pid and start time is never reused."""

    name: str
    job: str
    role: str
    host: str
    pid: int
    start_time: int
    """Clock ticks after boot, field 22 of /proc/<pid>/stat."""
    created: float
    """Unix time."""
    groups: tuple[str, ...] = ()
    """Folders of its control groups."""

    @property
    def uid(self) -> str:
        """Distinguishes this incarnation from another of the same name."""
        return f"{self.pid}-{self.start_time}"

    def node(self) -> Node:
        """The node as the master sees it."""
        return Node(self.name, self.uid, self.role, self.host)

    def is_alive(self) -> bool:
        """Does this very process still have the pid?"""
        return start_time(self.pid) == self.start_time


class Registry:
    """The folder of registrations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """The file of a node. Raises ValueError for an invalid node name (names become paths)."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a node's name: {name!r}; letters, digits and _.- only")
        return self._folder / f"{name}.json"

    def get(self, name: str) -> Registration | None:
        """The registration, whether or not the process lives; None if its file cannot be read."""
        try:
            return msgspec.json.decode(self.path(name).read_bytes(), type=Registration)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def put(self, entry: Registration) -> None:
        """Register, atomically and durably."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(self.path(entry.name), durable=True) as file:
            file.write(msgspec.json.encode(entry))

    def remove(self, entry: Registration) -> None:
        """Forget this incarnation; a later one of that name stays."""
        base_resources = self.get(entry.name)
        if base_resources is not None and base_resources.uid == entry.uid:
            self.path(entry.name).unlink(missing_ok=True)

    def all(self) -> Iterator[Registration]:
        """Every registration, by name."""
        for path in sorted(self._folder.glob("[!.]*.json")):
            if entry := self.get(path.stem):
                yield entry


def registry_of(run_dir: Path, job: str) -> Registry:
    """The nodes of one job of a run."""
    return Registry(run_dir / "nodes" / job)


def registries_of(run_dir: Path) -> list[Registry]:
    """Those of all jobs of a run."""
    return [Registry(folder) for folder in sorted((run_dir / "nodes").glob("*/"))]
