"""Control groups of a test's own that limit memory, on machines that let it make some."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.control_groups import GROUPS, control_group

V1, V2 = GROUPS / "memory", GROUPS


@contextmanager
def memory_group(size: int) -> Iterator[Path]:
    """A group of our own that may have so many bytes; skips the test where none can be made."""
    for root, file in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
        with ExitStack() as stack:
            try:
                group = stack.enter_context(control_group(root))
                (group / file).write_text(str(size))
            except OSError:
                continue
            yield group
            return
    pytest.skip("no memory group can be made here (not root, or no cgroup with memory)")


def write_listing(group: Path, file: Path) -> Path:
    """`file`, written as /proc lists the groups of a process that is in this one."""
    line = f"4:memory:/{group.name}" if group.parent == V1 else f"0::/{group.name}"
    file.write_text(f"{line}\n")
    return file
