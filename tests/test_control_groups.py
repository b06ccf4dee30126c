"""Control groups of a test run that was killed are removed by the next one."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.control_groups import GROUPS, control_group, remove_left_groups
from tests.harness import wait_until

ROOT = GROUPS / "blkio"
KILLED = """
import os, signal, subprocess
from pathlib import Path
from tests.control_groups import control_group
with control_group(Path({root!r})) as group:
    left = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
    (group / "cgroup.procs").write_text(str(left.pid))
    print(group, left.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_goes_with_its_processes_and_what_a_living_one_has_stays() -> None:
    with ExitStack() as stack:
        try:
            own = stack.enter_context(control_group(ROOT))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        code = KILLED.format(root=str(ROOT))
        killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
        assert killed.returncode == -9
        group, pid = killed.stdout.split()
        assert Path(group).exists(), "it was left"
        remove_left_groups()
        assert not Path(group).exists()
        wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), "the end of its process")
        assert own.exists()
