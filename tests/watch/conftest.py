"""Launchers of plain scripts, and a disk that is slow for some of their processes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.control_groups import GROUPS, control_group
from tests.launch.launchers import Launcher


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    pytest.importorskip("torch")
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture
def slow_disk(tmp_path: Path, launcher: Launcher) -> Iterator[str]:
    """A control group (v1) that may read 5 MB a second from the disk of this test."""
    device = tmp_path.stat().st_dev
    with ExitStack() as stack:
        try:
            group = stack.enter_context(control_group(GROUPS / "blkio"))
            (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} 5000000")
        except OSError as error:
            pytest.skip(f"no disk can be made slow here: {error}")
        yield str(group)
        launcher.close()
