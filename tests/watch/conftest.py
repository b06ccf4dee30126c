"""Launchers of plain scripts, and a disk that is slow for some of their processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launchers import Launcher, until


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    pytest.importorskip("torch")
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture
def slow_disk(tmp_path: Path, launcher: Launcher) -> Iterator[str]:
    """A control group (v1) that may read 5 MB a second from the disk of this test."""
    group, device = Path(f"/sys/fs/cgroup/blkio/everstep-{tmp_path.name}-{os.getpid()}"), tmp_path.stat().st_dev
    try:
        group.mkdir()
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} 5000000")
    except OSError as error:
        pytest.skip(f"no disk can be made slow here: {error}")
    yield str(group)
    launcher.close()
    until(lambda: not (group / "cgroup.procs").read_text(), lambda: "the group is empty")
    group.rmdir()
