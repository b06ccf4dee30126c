"""The process that measures a node for its check is a fork of the node's fork server, and none is left behind."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from everstep.runtime.agent.measuring import measure_beside
from everstep.runtime.agent.workers import Workers
from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.measurement_process import MeasurementProcess
from everstep.runtime.diagnosis.messages import Arrive
from everstep.runtime.diagnosis.node import check_node
from everstep.runtime.diagnosis.verdicts import Health, Verdict

pytest.importorskip("torch")


def descendants() -> set[int]:
    """Processes below this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def forks() -> list[psutil.Process]:
    """What the fork server has forked; its clone is a child of this process, too."""
    every = psutil.Process().children(recursive=True)
    return [process for process in every if process.ppid() != os.getpid()]


def play(folder: Path, story: Callable[[Workers], Awaitable[None]]) -> None:
    """The story with a fork server that has imported torch. No process may be left."""
    (folder / "train.py").write_text("import torch")
    before = descendants()

    async def run() -> None:
        workers = Workers([str(folder / "train.py")], [], lambda _: None)
        workers.open(folder / "socket")
        try:
            await workers.wait_until_ready(False)
            assert workers.forks
            await story(workers)
        finally:
            await workers.close()

    asyncio.run(run())
    assert descendants() <= before


async def verdict_on_a(measuring: MeasurementProcess) -> Verdict:
    """The check of a node alone."""
    coordinator = Coordinator()
    part = asyncio.create_task(check_node(coordinator, Arrive("a", "a", "127.0.0.1"), measuring))
    await coordinator.wait_for_arrivals(["a"], 60.0)
    await coordinator.check(["a"])
    return (await part).verdict


def test_it_is_forked_with_what_the_workers_import_and_ends_with_its_block(tmp_path: Path) -> None:
    async def story(workers: Workers) -> None:
        async with measure_beside(workers.beside) as measuring:
            (process,) = forks()
            assert process.cmdline() == psutil.Process(process.ppid()).cmdline(), "it is a fork alone"
            assert not (await verdict_on_a(measuring)).avoid
        assert not forks()

    play(tmp_path, story)


def test_it_goes_on_when_workers_are_started(tmp_path: Path) -> None:
    async def story(workers: Workers) -> None:
        async with measure_beside(workers.beside) as measuring:
            workers.start(1, False, [])
            assert not (await verdict_on_a(measuring)).avoid

    play(tmp_path, story)


def test_a_check_comes_to_its_verdict_when_the_fork_server_dies(tmp_path: Path) -> None:
    async def story(workers: Workers) -> None:
        async with measure_beside(workers.beside) as measuring:
            (process,) = forks()
            os.kill(process.ppid(), signal.SIGKILL)
            verdict = await verdict_on_a(measuring)
        assert (verdict.health, verdict.reason) == (Health.FAULTY, "the process that measures was ended")
        assert measuring.lost.done()
        async with measure_beside(workers.beside) as measuring:
            assert not (await verdict_on_a(measuring)).avoid, "the next one imports by itself"

    play(tmp_path, story)


def test_it_can_be_killed(tmp_path: Path) -> None:
    async def story(workers: Workers) -> None:
        async with measure_beside(workers.beside) as measuring:
            measuring.kill()
            await measuring.lost
        assert not forks()

    play(tmp_path, story)
