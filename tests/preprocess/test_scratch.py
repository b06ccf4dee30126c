"""Spark's folder: whoever is killed leaves it to the next one, who removes it; nobody removes one that is in use."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everstep.steps.preprocess.scratch import scratch
from tests.harness import ROOT

HOLDS = """
import signal
from everstep.steps.preprocess.scratch import scratch
with scratch() as folder:
    (folder / "blocks").write_bytes(bytes(1000))
    print(folder, flush=True)
    signal.pause()
"""


def test_what_a_killed_step_left_is_removed_and_what_is_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    steps = [
        subprocess.Popen([sys.executable, "-c", HOLDS], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        folders = [Path((step.stdout or sys.stdin).readline().strip()) for step in steps]
        for step in steps[:2]:
            step.send_signal(signal.SIGKILL)
            step.wait()
        assert all((folder / "blocks").exists() for folder in folders)
        for folder in (folders[0], folders[2]):
            os.utime(folder, (0, 0))
        with scratch() as own:
            assert sorted(tmp_path.iterdir()) == sorted([*folders[1:], own])  # One may not have been locked yet.
        assert sorted(tmp_path.iterdir()) == sorted(folders[1:])
    finally:
        for step in steps:
            step.kill()
            step.wait()
            (step.stdout or sys.stdin).close()
