"""Swap that a killed test run left is turned off by the next one."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.swap_files import PREFIX, SWAPS, swap_file, turn_off_left

KILLED = """
import os, signal
from pathlib import Path
from tests.swap_files import swap_file
with swap_file(Path({folder!r}), 1 << 20):
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_turned_off_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            stack.enter_context(swap_file(tmp_path, 1 << 20))
        except OSError as error:
            pytest.skip(f"no swap can be turned on here: {error}")
        code = KILLED.format(folder=str(tmp_path))
        killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
        assert killed.returncode == -9
        assert f"{PREFIX}{int(killed.stdout)}-" in SWAPS.read_text(), "it was left"
        turn_off_left()
        assert f"{PREFIX}{int(killed.stdout)}-" not in SWAPS.read_text()
        (path,) = tmp_path.rglob(f"{PREFIX}*")
        assert str(path) in SWAPS.read_text()
    assert str(path) not in SWAPS.read_text()
