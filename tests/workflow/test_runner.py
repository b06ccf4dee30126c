"""What runs pods: any runner will do; with processes, an end is seen whatever became of the watching of others."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.workflow import RunOptions, execute
from runtime.workflow.runner import Processes, start_time

TASKS = [{"name": "a", "template": "t"}, {"name": "b", "template": "t", "depends": "a"}]
POD = {"name": "t", "container": {"image": "i", "command": ["sh", "-c", "exit 3"]}}
SOURCE = {
    "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w"},
    "spec": {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": TASKS}}, POD]},
}  # fmt: skip


class AtOnce:
    """Pods that have ended well as soon as they are asked for."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.closed = False

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """What a pod leaves behind is all there is of it."""
        for one in requests:
            self.ran.append(one["environment"]["ARGO_NODE_ID"])
            Path(one["claim"]).parent.mkdir(parents=True, exist_ok=True)
            Path(one["claim"]).write_text("1 1\n")
            Path(one["exit"]).write_text("0\n")
        return {one["claim"]: "started" for one in requests}

    async def gone(self, pid: int, began: int) -> None:
        """It is."""

    def send(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Nobody is there to hear it."""

    def close(self) -> None:
        """Remembered."""
        self.closed = True


def test_the_executor_runs_with_any_runner(tmp_path: Path) -> None:
    runner = AtOnce()
    ended = asyncio.run(execute(SOURCE, RunOptions("w", tmp_path), runner=runner))
    assert (ended.phase, len(runner.ran), runner.closed) == ("Succeeded", 2, True)


def test_an_end_is_seen_after_the_watching_of_another_was_given_up() -> None:
    """The next descriptor has the number of the one given up; once the loop took it for that, and saw no end."""

    gone = Processes().gone

    async def seen(other: int, process: subprocess.Popen[bytes]) -> None:
        descriptor = os.dup(0)
        os.close(descriptor)
        given_up = asyncio.create_task(gone(other, start_time(other)))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        watched = asyncio.create_task(gone(process.pid, start_time(process.pid)))
        await asyncio.sleep(0)
        assert os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[pidfd]"
        process.kill()
        async with asyncio.timeout(60):
            await watched

    with subprocess.Popen(["sleep", "600"]) as other, subprocess.Popen(["sleep", "600"]) as process:
        try:
            asyncio.run(seen(other.pid, process))
        finally:
            other.kill()
            process.kill()
