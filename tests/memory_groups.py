"""Control groups of a test's own, on machines that let it make some."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.harness import wait_until

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def memory_group(size: int) -> Iterator[Path]:
    """A group of our own that may have so many bytes; skips the test where none can be made."""
    name = f"everstep-test-{uuid.uuid4().hex[:8]}"
    for root, file in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
        group = root / name
        if _make(group, file, str(size)):
            yield group
            wait_until(partial(_try_to_empty, group), f"{name} without processes")
            return
    pytest.skip("no memory group can be made here (not root, or no cgroup with memory)")


def write_listing(group: Path, file: Path) -> Path:
    """`file`, written as /proc lists the groups of a process that is in this one."""
    line = f"4:memory:/{group.name}" if group.parent == V1 else f"0::/{group.name}"
    file.write_text(f"{line}\n")
    return file


def _make(group: Path, file: str, limit: str) -> bool:
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        (group / file).write_text(limit)
    except OSError:
        group.rmdir()
        return False
    return True


def _try_to_empty(group: Path) -> bool:
    with suppress(OSError):
        for below in group.iterdir():
            if below.is_dir():
                below.rmdir()
        group.rmdir()
    return not group.exists()
