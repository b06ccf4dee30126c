"""What launches keep on their machine, and when it goes."""

import os
import time
from pathlib import Path

from runtime.launch.scratch import Scratch
from runtime.token import shared_token


def test_a_secret_goes_when_no_node_of_its_job_is_left(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    for job in ("runs", "ended", "begins"):
        shared_token(tmp_path / f"{job}.token")
        if job != "begins":
            long_ago = time.time() - 86_400
            os.utime(tmp_path / f"{job}.token", (long_ago, long_ago))
    entry = scratch.enter("runs", "worker-0", "worker")
    scratch.sweep()
    assert sorted(path.stem for path in tmp_path.glob("*.token")) == ["begins", "runs"]
    scratch.leave(entry)
    scratch.sweep()
    assert [path.stem for path in tmp_path.glob("*.token")] == ["begins"]
