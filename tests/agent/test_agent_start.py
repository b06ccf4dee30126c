"""What stays of an agent that cannot start."""

import asyncio
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.dependencies import Dependencies
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.settings import settings_of
from everstep.runtime.net.tls import Credentials
from everstep.runtime.platform import debris


def test_an_agent_whose_keeper_cannot_be_made_leaves_no_folder(tmp_path: Path) -> None:
    job, folders = f"test-{uuid.uuid4().hex[:8]}", []

    def make_outputs(folder: Path) -> NodeLog:
        folders.append(folder)
        return NodeLog(1, folder)

    def make_keeper(*_: object) -> Any:
        assert folders[0].is_dir()
        raise PermissionError("no shared memory")

    async def run() -> None:
        environment = {"EVERSTEP_JOB_TOKEN": "secret", "EVERSTEP_MASTER": "http://127.0.0.1:1", "EVERSTEP_JOB": job}
        environment["EVERSTEP_STORE"] = str(tmp_path / "store")
        settings, _ = settings_of(["--node", "worker-0-0", "--", __file__], environment)
        nothing: Any = lambda *_: None  # noqa: E731
        dependencies = Dependencies(
            Credentials("secret"), make_keeper, nothing, make_outputs, nothing, nothing, nothing, nothing
        )
        await Agent(settings, dependencies, random.Random()).run()

    with pytest.raises(PermissionError, match="no shared memory"):
        asyncio.run(run())
    assert folders
    mark = debris.memory_prefix(job, "worker-0-0")
    assert not [path for path in debris.SHARED_MEMORY.iterdir() if path.name.lstrip(".").startswith(mark)]
