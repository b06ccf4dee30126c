"""The real thing: master, platform, agents, keepers and two torch workers that all-reduce over gloo."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.master import AgentCommand, Control, run
from everstep.runtime.net.tls import Credentials
from everstep.runtime.platform import debris
from everstep.runtime.platform.process import ProcessPlatform, end_nodes
from everstep.runtime.store import open_store

SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from everstep.runtime.protocol.worker_link import Link, Report
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.net.tls import Credentials

link = Link.from_environment()
dist.init_process_group("gloo")
rank, state = dist.get_rank(), {"total": torch.zeros(1)}
checkpointer = Checkpointer(state, keeper=link, rank=rank, local_rank=int(os.environ["LOCAL_RANK"]))
for iteration in range(checkpointer.load(state) + 1, 9):
    one = torch.ones(1)
    dist.all_reduce(one)
    state["total"] += one
    checkpointer.save(iteration, state)
    link.tell(Report(iteration, {"loss": 1.0}))
    if iteration == 4 and os.environ["EVERSTEP_ROUND"] == "1" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
checkpointer.finish(state)
dist.barrier()
open(sys.argv[1] + f"/total-{rank}", "w").write(str(int(state["total"])))
"""


def test_two_nodes_all_reduce_lose_a_worker_and_end_with_the_same_sum(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = f"test-{uuid.uuid4().hex[:8]}"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    async def story() -> Any:
        platform = ProcessPlatform(tmp_path, job)
        arguments = ["--persist-interval=100", "--", str(script), str(tmp_path)]
        async with asyncio.timeout(200):
            return await run(
                JobSpec(job, {"worker": RoleSpec(2, 1)}),
                open_store(str(tmp_path / "store")),
                platform,
                Credentials("secret"),
                AgentCommand(arguments, environment={"OMP_NUM_THREADS": "1"}),
                Control(asyncio.Event()),
            )

    try:
        outcome = asyncio.run(story())
        logs = "".join(path.read_text() for path in sorted((tmp_path / "logs" / job).iterdir()))
        assert outcome.state == "succeeded", logs
        assert [(tmp_path / f"total-{rank}").read_text() for rank in (0, 1)] == ["16", "16"], logs
        assert "ended with exit code -9 at iteration 4" in logs
        assert "round 2: ranks" in logs
    finally:
        assert end_nodes(tmp_path) == []
    prefix = debris.memory_prefix(job, "").removesuffix("-")
    assert not [path.name for path in debris.SHARED_MEMORY.iterdir() if prefix in path.name]
