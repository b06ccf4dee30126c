"""The process of a master, as the node that started it sees it."""

import asyncio

import pytest

from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.launch import master_process
from everstep.runtime.launch.master_main import MasterConfig


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
