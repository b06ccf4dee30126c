"""A command beside the workers, as the test of a node before a restart; and what its end means."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everstep.runtime.agent.workers import Workers
from everstep.runtime.diagnosis.self_test import Result, result_of


def play(folder: Path, story: Callable[[Workers], Awaitable[None]]) -> None:
    """The story with a fork server that has nothing to import."""
    scripts = {
        "train.py": "",
        "good.py": "print('words'); print('{\"seconds\": 0.5}')",
        "waits.py": "import signal; signal.pause()",
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)

    async def run() -> None:
        workers = Workers([str(folder / "train.py")], [], lambda _: None)
        workers.open(folder / "socket")
        try:
            await workers.wait_until_ready(False)
            await story(workers)
        finally:
            await workers.close()

    asyncio.run(run())


def test_its_exit_code_and_the_end_of_its_output_are_told(tmp_path: Path) -> None:
    async def story(workers: Workers) -> None:
        outcome = await workers.beside.run([str(tmp_path / "good.py")], {})
        assert outcome == (0, 'words\n{"seconds": 0.5}')
        assert result_of(*outcome) == Result(0.5)
        assert workers.pids() == {}

    play(tmp_path, story)


def test_it_ends_when_the_next_workers_are_started(tmp_path: Path) -> None:
    async def story(workers: Workers) -> None:
        beside = asyncio.ensure_future(workers.beside.run([str(tmp_path / "waits.py")], {}))
        await asyncio.sleep(0)  # It is asked for by now.
        workers.start(1, False, [])
        assert (await beside)[0] == -signal.SIGKILL

    play(tmp_path, story)


def test_without_a_fork_server_it_counts_as_killed(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers([str(tmp_path / "train.py")], [], lambda _: None)
        assert await workers.beside.run(["x.py"], {}) == (-signal.SIGKILL, "")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("exit_code", "output", "problem"),
    [
        (0, '{"seconds": 1.0, "problem": "cuda:1: copy: 3 MB/s"}', "cuda:1: copy: 3 MB/s"),
        (0, '{"seconds": 1.0, "untested": "cuda:1: memory: CUDA out of memory."}', ""),
        (0, "", ""),
        (1, "Traceback\nModuleNotFoundError: No module named 'torch'", ""),
        (-signal.SIGKILL, "", ""),
        (-signal.SIGSEGV, "", "cpu: its test was ended by SIGSEGV"),
    ],
)
def test_only_a_finding_or_a_crash_is_a_problem(exit_code: int, output: str, problem: str) -> None:
    assert result_of(exit_code, output).problem == problem
