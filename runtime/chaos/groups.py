"""Control groups that a fault makes: processes enter them, and nothing is left of them."""

import os
from contextlib import suppress
from pathlib import Path

from everstep.runtime.system.processes import start_time

ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
"""Where a v2 hierarchy is mounted."""
DISKS_V1 = Path("/sys/fs/cgroup/blkio")
"""Where the v1 hierarchy is that limits disks."""
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


def remove(group: Path) -> None:
    """Remove it; processes that are still in it go back to the group above."""
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                enter(group.parent, int(pid))
        group.rmdir()
