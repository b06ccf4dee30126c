"""What a node does as its master says."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.runtime.agent import directives
from everstep.runtime.agent.background import Background
from everstep.runtime.agent.dependencies import AgentStatus
from everstep.runtime.agent.directives import Directives
from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.settings import Settings
from everstep.runtime.protocol.messages import Action, Directive, Dumped

SETTINGS = Settings(
    job="job", token="secret", master="http://127.0.0.1:1", store="store", node="a", role="worker", host="h", slots=2,
    command=("train.py",), threads="",
)  # fmt: skip


def test_a_node_whose_stacks_cannot_be_read_says_so_and_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(directives, "look", fail)
    lines, reports = list[str](), list[Dumped]()
    unused: Any = None

    async def run() -> None:
        reported, background = asyncio.Event(), Background()

        async def report_dumped(dumped: Dumped) -> None:
            reports.append(dumped)
            reported.set()

        dependencies: Any = SimpleNamespace(say=lines.append)
        client: Any = SimpleNamespace(report_dumped=report_dumped)
        node = Directives(
            SETTINGS, tmp_path, dependencies, client, MasterDialogue("a", 7), AgentStatus(), unused, unused, unused,
            background, unused,
        )  # fmt: skip
        node.carry_out(Directive(1, 4, Action.DUMP, "all ranks stand still"))
        waits = [asyncio.create_task(wait) for wait in (reported.wait(), background.wait_for_failure())]
        async with asyncio.timeout(30):
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    asyncio.run(run())
    assert lines[-1] == "the stacks cannot be read: OSError: Too many open files"
    assert reports == [Dumped("a", 0, 4)]
