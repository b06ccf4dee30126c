"""The process of a master, as the node that started it sees it."""

import asyncio
import errno
import os
import random
import tempfile
from pathlib import Path

import psutil
import pytest

from everstep.runtime.agent.ports import free_port
from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.launch import master_process
from everstep.runtime.launch.flags import Parser
from everstep.runtime.launch.master_main import MasterConfig
from everstep.runtime.launch.options import read_launch
from everstep.runtime.launch.probe import is_master
from everstep.runtime.launch.run import launch


def test_a_master_that_is_told_to_end_while_it_is_down_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    async def once(master: master_process.Master) -> int:
        starts.append(75)
        return 75 if len(starts) == 1 else 0

    monkeypatch.setattr(master_process.Master, "_run_once", once)
    monkeypatch.setattr(master_process, "_PAUSE_S", 0.0)
    spec = JobSpec("j", {"worker": RoleSpec(1, 1)}, hosts="")

    async def story() -> None:
        master = master_process.Master(
            MasterConfig(spec, "store", "secret", False, "127.0.0.1", 1, 0), lambda text: master.stop()
        )
        assert await master.run() == 75

    asyncio.run(story())
    assert starts == [75]


def test_a_node_that_fails_before_it_has_joined_leaves_no_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(host: str, port: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("everstep.runtime.agent.agent.listen", listen)
    for variable in ("EVERSTEP_JOB", "EVERSTEP_NODE"):  # The launch sets them in its process, which is this one.
        monkeypatch.setenv(variable, "")
    (tmp_path / "train.py").write_text("")
    endpoint = f"127.0.0.1:{free_port(random.Random())}"
    flags = ["--nnodes=1:2", f"--rdzv-endpoint={endpoint}", "--signals-to-handle=SIGUSR1", str(tmp_path / "train.py")]
    with pytest.raises(OSError, match="Too many open files"):
        launch(read_launch(Parser({}).parse_args(flags), {}), {})
    masters = [child for child in psutil.Process().children() if is_master(child)]
    for master in masters:
        master.kill()
    assert masters == []
