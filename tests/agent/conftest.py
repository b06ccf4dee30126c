"""One node with a fake master and a fake keeper, as real processes; nothing of it may be left at the end."""

import importlib.util
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from everstep.runtime.platform import NodeRequest, debris
from everstep.runtime.platform.process import ProcessPlatform, end_nodes
from everstep.runtime.system import processes

HERE = Path(__file__).parent
DEADLINE_S = 20


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def masters() -> Any:
    """The class FakeMaster."""
    return _load("fake_master").FakeMaster


class Job:
    """One job's nodes in a run folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.platform = ProcessPlatform(folder, self.name, (sys.executable, str(HERE / "fake_keeper.py")))

    def request(self, master: str, script: str, *arguments: str, node: str = "worker-0-0", **more: str) -> NodeRequest:
        """A node that runs this source text; keyword arguments in capitals are its environment, others are flags."""
        path = self.folder / f"script-{node}.py"
        path.write_text(script)
        environment = {
            "EVERSTEP_JOB_TOKEN": "secret",
            "EVERSTEP_MASTER": master,
            "EVERSTEP_STORE": str(self.folder / "store"),
            **{key: value for key, value in more.items() if key.isupper()},
        }
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in more.items() if not key.isupper() and value]
        flags += [f"--{key.replace('_', '-')}" for key, value in more.items() if not key.isupper() and not value]
        return NodeRequest(
            node, "worker", "local-0", environment, ["--node", node, *flags, "--", str(path), *arguments]
        )

    def log(self, node: str = "worker-0-0") -> str:
        """What the node wrote."""
        return (self.folder / "logs" / self.name / f"{node}.log").read_text()

    def leftovers(self) -> list[str]:
        """Processes and shared memory of the job that still exist."""
        marker, command_lines = f"EVERSTEP_JOB={self.name}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    environment = (entry / "environ").read_bytes().split(b"\0")
                    if marker in environment and processes.start_time(int(entry.name)) is not None:
                        command_lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        mark = debris.memory_prefix(self.name, "x").removesuffix("x-")
        return command_lines + [p.name for p in debris.SHARED_MEMORY.iterdir() if p.name.lstrip(".").startswith(mark)]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job; whatever a failed test left is ended."""
    new_job = Job(tmp_path)
    yield new_job
    end_nodes(tmp_path)
    assert new_job.leftovers() == []


@pytest.fixture
def wait_for_end(job: Job) -> Callable[[], Any]:
    """Waits for the next node that is gone."""
    import asyncio

    stream = job.platform.node_ends()

    async def wait() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await anext(stream)

    return wait
