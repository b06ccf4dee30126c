"""Control groups of a test's own. A group's name holds its maker: the next test run removes what a killed one left."""

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from everstep.runtime.system.processes import start_time
from tests.harness import wait_until

GROUPS = Path("/sys/fs/cgroup")
PREFIX = "everstep-test-"


@contextmanager
def control_group(root: Path) -> Iterator[Path]:
    """A new group below `root`, which is gone afterwards: its processes must have ended. Raises OSError: none can be
    made."""
    group = root / f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        yield group
    finally:
        wait_until(partial(_try_to_remove, group), f"{group} without processes")


def remove_left_groups(groups: Path = GROUPS) -> None:
    """Remove the groups whose makers have ended, with the processes in them."""
    for group in [*groups.glob(f"{PREFIX}*"), *groups.glob(f"*/{PREFIX}*")]:
        pid, _, began = group.name.removeprefix(PREFIX).rpartition("-")[0].partition("-")
        if pid.isdigit() and began.isdigit() and start_time(int(pid)) != int(began):
            _kill_processes(group)
            wait_until(partial(_try_to_remove, group), f"{group} without processes")


def _kill_processes(group: Path) -> None:
    with suppress(OSError):  # Another test run removes it, too.
        for listing in group.rglob("cgroup.procs"):
            for line in listing.read_text().split():
                os.kill(int(line), signal.SIGKILL)


def _try_to_remove(group: Path) -> bool:
    with suppress(OSError):
        for below in group.iterdir():
            if below.is_dir():
                below.rmdir()
        group.rmdir()
    return not group.exists()
