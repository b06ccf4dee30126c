"""What runs pods: any runner will do; with processes, an end is seen whatever became of the watching of others."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.system.processes import start_time
from everstep.runtime.workflow import RunOptions, execute
from everstep.runtime.workflow.local_pods import clock
from everstep.runtime.workflow.local_pods.pod_starter import MAX_PODS, STARTS_AT_ONCE
from everstep.runtime.workflow.local_pods.runner import ProcessRunner

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
        for request in requests:
            self.ran.append(request["environment"]["ARGO_NODE_ID"])
            Path(request["claim"]).parent.mkdir(parents=True, exist_ok=True)
            Path(request["claim"]).write_text("1 1\n")
            Path(request["exit"]).write_text("0\n")
        return {request["claim"]: "started" for request in requests}

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """It is."""

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Nobody is there to hear it."""

    def close(self) -> None:
        """Remembered."""
        self.closed = True


def test_the_executor_runs_with_any_runner(tmp_path: Path) -> None:
    runner = AtOnce()
    finished_run = asyncio.run(execute(SOURCE, RunOptions("w", tmp_path), runner=runner))
    assert (finished_run.phase, len(runner.ran), runner.closed) == ("Succeeded", 2, True)


MANY = 400


def many(**spec: Any) -> dict[str, Any]:
    """A loop of pods, all of them ready at once."""
    step = {"name": "a", "template": "t", "withSequence": {"count": str(MANY)}}
    templates = [{"name": "main", "steps": [[step]]}, POD]
    return {**SOURCE, "spec": {"entrypoint": "main", "templates": templates, **spec}}


class Counting(AtOnce):
    """Counts the pods that run, and calls `after` for every batch that is started. Pods run until `release`."""

    def __init__(self, after: Callable[["Counting"], None] = lambda _: None) -> None:
        super().__init__()
        self.after = after
        self.running, self.most = 0, 0
        self.release = asyncio.Event()

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Counted."""
        started = super().start(requests)
        self.running += len(started)
        self.most = max(self.most, self.running)
        self.after(self)
        return started

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """When it is let go."""
        await self.release.wait()
        self.running -= 1

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Whatever is sent ends all."""
        self.release.set()


def test_a_stop_is_seen_before_all_that_is_ready_has_been_started(tmp_path: Path) -> None:
    runner = Counting(lambda own: os.kill(os.getpid(), signal.SIGTERM) if len(own.ran) == 2 * STARTS_AT_ONCE else None)
    stopped = (signal.SIGTERM,)
    finished_run = asyncio.run(execute(many(), RunOptions("w", tmp_path), stopped, runner))
    assert (finished_run.phase, finished_run.message) == ("Failed", "Stopped with strategy 'Stop'")
    assert 2 * STARTS_AT_ONCE <= len(runner.ran) <= 4 * STARTS_AT_ONCE


def test_a_deadline_is_seen_before_all_that_is_ready_has_been_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch takes a minute, of a time that only passes so."""
    passed = [0.0]
    monkeypatch.setattr(
        clock, "resume_clock", lambda *_: clock.Clock(1_000_000.0, lambda: passed[0], lambda: 1_000_000.0)
    )

    def a_minute(_: Counting) -> None:
        passed[0] += 60.0

    runner = Counting(a_minute)
    finished_run = asyncio.run(execute(many(activeDeadlineSeconds=150), RunOptions("w", tmp_path), runner=runner))
    assert finished_run.phase == "Failed"
    assert len(runner.ran) == 3 * STARTS_AT_ONCE


def test_no_more_pods_run_at_once_than_a_node_of_kubernetes_has(tmp_path: Path) -> None:
    def when_full(own: Counting) -> None:
        if own.running == MAX_PODS:
            asyncio.get_running_loop().call_soon(own.release.set)

    runner = Counting(when_full)
    finished_run = asyncio.run(execute(many(), RunOptions("w", tmp_path), runner=runner))
    assert (finished_run.phase, len(runner.ran), runner.most) == ("Succeeded", MANY, MAX_PODS)


def test_an_end_is_seen_after_the_watching_of_another_was_given_up() -> None:
    """The next descriptor has the number of the one given up; once the loop took it for that, and saw no end."""

    wait_until_gone = ProcessRunner().wait_until_gone

    async def watch(other: int, process: subprocess.Popen[bytes]) -> None:
        descriptor = os.dup(0)
        os.close(descriptor)
        given_up = asyncio.create_task(wait_until_gone(other, start_time(other) or 0))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        watched = asyncio.create_task(wait_until_gone(process.pid, start_time(process.pid) or 0))
        await asyncio.sleep(0)
        assert os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[pidfd]"
        process.kill()
        async with asyncio.timeout(60):
            await watched

    with subprocess.Popen(["sleep", "600"]) as other, subprocess.Popen(["sleep", "600"]) as process:
        try:
            asyncio.run(watch(other.pid, process))
        finally:
            other.kill()
            process.kill()
