"""Launchers of plain scripts, a disk that is slow for some of their processes, and swap."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.control_groups import GROUPS, control_group
from tests.launch.launchers import Launcher
from tests.swap_files import swap_file


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


@pytest.fixture
def swap(tmp_path: Path, launcher: Launcher) -> Iterator[str]:
    """Text that is not empty: there is swap for 128 MiB."""
    with ExitStack() as stack:
        try:
            stack.enter_context(swap_file(tmp_path, 128 << 20))
        except OSError:
            yield ""
        else:
            yield "here"
        launcher.close()
