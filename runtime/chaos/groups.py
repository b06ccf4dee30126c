"""Control groups that a fault makes: processes enter them, and nothing is left of them."""

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from everstep.runtime.system.processes import start_time

ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
"""Where a v2 hierarchy is mounted."""
DISKS_V1 = Path("/sys/fs/cgroup/blkio")
"""Where the v1 hierarchy is that limits disks."""
_TRIES = 100
"""Looks at who is left in a group that is removed."""
_PREFIX = "everstep-chaos-"
"""Of a group's name; the pid and start time of the process that made it follow."""


def find_root() -> Path | None:
    """The v2 hierarchy."""
    return next((root for root in ROOTS if (root / "cgroup.controllers").exists()), None)


def make_group(name: str, root: Path | None = None) -> Path:
    """A group below the root (the v2 hierarchy's by default) that `remove_abandoned` removes if this process leaves it
    behind; an existing one of this process and that name is taken. Raises OSError."""
    root = root or find_root()
    assert root is not None, "`refusal` was empty"
    group = root / f"{_PREFIX}{os.getpid()}-{start_time(os.getpid())}-{name}"
    group.mkdir(exist_ok=True)
    return group


def remove_abandoned() -> None:
    """Remove the groups of processes that were killed before they could do it."""
    for root in (DISKS_V1, *ROOTS):
        for group in root.glob(f"{_PREFIX}*"):
            pid, _, rest = group.name.removeprefix(_PREFIX).partition("-")
            if not pid.isdigit() or str(start_time(int(pid))) != rest.partition("-")[0]:
                remove(group)


def enter(group: Path, pid: int) -> None:
    """The process, and those it will start, belong to the group. Raises OSError."""
    (group / "cgroup.procs").write_text(str(pid))


def enter_all(group: Path, processes: Callable[[], list[psutil.Process]], homes: dict[int, Path]) -> None:
    """These processes enter the group; `homes` gets the groups in which they were, by pid. Raises OSError."""
    for _ in range(2):  # One may be forked before its parent has entered.
        for process in processes():
            with suppress(ProcessLookupError, FileNotFoundError):  # It has ended.
                if (home := group_of(process.pid, group.parent)) != group:
                    homes[process.pid] = home
                    enter(group, process.pid)


def group_of(pid: int, root: Path) -> Path:
    """The process's group in the hierarchy of that root; the root itself if it is not to be found below it. Raises
    OSError."""
    hierarchy = root.name if root == DISKS_V1 else ""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == hierarchy and (group := root / path.lstrip("/")).is_dir():
            return group
    return root


def remove(group: Path, homes: Mapping[int, Path] | None = None) -> None:
    """Remove it. Processes that are still in it go to their homes by pid, or to their parent's; without any to the
    group above."""
    with suppress(OSError):
        for _ in range(_TRIES):  # A process may be forked while its parent leaves.
            for pid in map(int, (group / "cgroup.procs").read_text().split()):
                with suppress(ProcessLookupError, FileNotFoundError):  # It, or its home, is gone.
                    enter(_home(pid, homes or {}) or group.parent, pid)
            try:
                group.rmdir()
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise


def _home(pid: int, homes: Mapping[int, Path]) -> Path | None:
    with suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(pid), *psutil.Process(pid).parents()):
            if (home := homes.get(process.pid)) and home.is_dir():
                return home
    return None
