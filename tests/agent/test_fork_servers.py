"""A node's fork servers: when one is killed its clone forks the next workers, and nothing is imported again."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from everstep.runtime.agent import forkserver
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.agent.worker_ends import WorkerEnd
from everstep.runtime.agent.workers import Workers, WorkerSpec
from everstep.runtime.system.processes import start_time

DEADLINE_S = 60
IMPORTED = "import os\nwith open(os.environ['IMPORTS'], 'a') as file:\n    file.write('x')\n"
SCRIPT = "import imported\nimport os, signal\nprint(os.getppid(), flush=True)\nsignal.pause()\n"


class Node:
    """The workers of one node, whose script says who forked it, and waits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ends, self.round = folder, asyncio.Queue[WorkerEnd](), 0
        self.started = asyncio.Queue[int]()
        self.said = tuple[str, ...]()
        """Lines for the log, of the last start."""
        self.log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
        self.command = [str(folder / "train.py")]
        self.workers = Workers(
            self.command, [], self.ends.put_nowait, on_start=lambda rank, pid: self.started.put_nowait(pid)
        )

    async def start(self) -> int:
        """Start a worker; the process that forked it."""
        self.said = await self.workers.wait_until_ready(plain=False)
        self.round += 1
        variables = {"RANK": "0", TRACEBACK_VARIABLE: str(self.folder / "traceback")}
        output = NodeLog(self.log, self.folder).open(0, 0)
        self.workers.start(self.round, False, [WorkerSpec(variables, tuple(self.command), output)])
        return psutil.Process(await self.started.get()).ppid()

    def imports(self) -> int:
        """How often the script's imports were made."""
        return len((self.folder / "imports").read_text())


Play = Callable[[Callable[[Node], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Run a story of a node; afterwards none of its processes is left."""
    (tmp_path / "imported.py").write_text(IMPORTED)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))

    async def run(story: Callable[[Node], Awaitable[None]]) -> None:
        node = Node(tmp_path)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await story(node)
        finally:
            await node.workers.close()
            os.close(node.log)

    before = psutil.Process().children()
    yield lambda story: asyncio.run(run(story))
    assert [process for process in psutil.Process().children() if process not in before] == []


def servers() -> set[int]:
    """The fork servers that live."""
    return {
        child.pid
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and forkserver.__name__ in child.cmdline()
    }


async def wait_for_servers(count: int) -> set[int]:
    """All of them, when there are so many."""
    while len(found := servers()) != count:
        await asyncio.sleep(0.01)
    return found


def test_the_clone_of_a_killed_fork_server_forks_the_next_workers_and_imports_nothing(
    play: Play,
) -> None:
    async def story(node: Node) -> None:
        used = [await node.start()]
        for _ in range(3):
            assert used[-1] in await wait_for_servers(2)
            os.kill(used[-1], signal.SIGKILL)
            assert (await node.ends.get()).exit_code == -signal.SIGKILL
            used.append(await node.start())
            assert node.said == ("the fork server has ended: its clone takes its place",)
        assert len(set(used)) == len(used)
        assert node.imports() == 1

    play(story)


def test_a_stopped_worker_receives_the_signal_to_end(play: Play) -> None:
    async def story(node: Node) -> None:
        await node.start()
        while not (node.folder / "log").read_bytes():  # Before its script runs, it ignores signals.
            await asyncio.sleep(0.01)
        worker = psutil.Process(next(iter(node.workers.pids().values())))
        worker.suspend()
        while worker.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        await node.workers.end(10 * DEADLINE_S, signal.SIGTERM)
        assert (await node.ends.get()).exit_code == -signal.SIGTERM

    play(story)


LEAVES = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('ready', flush=True)\n"
"""The script ends with exit code 0 when it is told to."""


@pytest.mark.parametrize("to_all", [True, False], ids=["to all", "to the worker"])
def test_a_worker_that_was_told_to_end_with_its_machine_has_not_finished(play: Play, to_all: bool) -> None:
    async def story(node: Node) -> None:
        (node.folder / "train.py").write_text(f"import imported\n{LEAVES}signal.pause()\n")
        server = await node.start()
        while b"ready" not in (node.folder / "log").read_bytes():
            await asyncio.sleep(0.01)
        if to_all:
            os.kill(server, signal.SIGTERM)
        (worker,) = node.workers.pids().values()
        os.kill(worker, signal.SIGTERM)
        assert (await node.ends.get()).exit_code == (-signal.SIGTERM if to_all else 0)
        (node.folder / "train.py").write_text("import imported\n")
        assert await node.start() == server
        assert (await node.ends.get()).exit_code == 0, "it was not there when all were told"

    play(story)


STARTS = """
import imported
import signal, subprocess
from multiprocessing.shared_memory import SharedMemory
memory, child = SharedMemory(create=True, size=1 << 20), subprocess.Popen(["sleep", "1000"])
print(memory.name, child.pid, flush=True)
signal.pause()
"""
"""It leaves memory, which Python's resource tracker removes, and a child."""


def test_what_the_workers_of_a_killed_fork_server_leave_is_killed_and_their_memory_removed(play: Play) -> None:
    async def story(node: Node) -> None:
        (node.folder / "train.py").write_text(STARTS)
        server = await node.start()
        while not (log := (node.folder / "log").read_text()).endswith("\n"):
            await asyncio.sleep(0.01)
        memory, child = log.removeprefix("[0] ").split()
        assert Path("/dev/shm", memory).exists()
        os.kill(server, signal.SIGKILL)
        assert (await node.ends.get()).exit_code == -signal.SIGKILL
        while Path("/dev/shm", memory).exists() or start_time(int(child)) is not None:
            await asyncio.sleep(0.01)

    play(story)


def test_a_killed_clone_is_followed_by_another(play: Play) -> None:
    async def story(node: Node) -> None:
        used = await node.start()
        (clone,) = await wait_for_servers(2) - {used}
        os.kill(clone, signal.SIGKILL)
        assert await wait_for_servers(1) == {used}
        node.workers.end_round(1)
        assert (await node.ends.get()).exit_code == -signal.SIGKILL
        assert await node.start() == used
        assert clone not in await wait_for_servers(2)
        assert node.imports() == 1

    play(story)


def test_if_both_are_killed_the_next_fork_server_imports_again(
    play: Play,
) -> None:
    async def story(node: Node) -> None:
        used = await node.start()
        for server in await wait_for_servers(2):
            os.kill(server, signal.SIGKILL)
        assert (await node.ends.get()).exit_code == -signal.SIGKILL
        await wait_for_servers(0)
        await asyncio.sleep(0.05)  # The node sees it; a round begun before that would end at once.
        assert await node.start() != used
        assert node.imports() == 2

    play(story)


def test_without_a_way_to_clone_the_next_fork_server_imports_again(play: Play, tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text(IMPORTED + "import platform\nplatform.machine = lambda: 'other'\n")

    async def story(node: Node) -> None:
        used = await node.start()
        assert await wait_for_servers(1) == {used}
        os.kill(used, signal.SIGKILL)
        assert (await node.ends.get()).exit_code == -signal.SIGKILL
        assert await node.start() != used
        assert node.imports() == 2

    play(story)
