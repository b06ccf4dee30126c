"""The agent and a worker that can leave a round: told when it is over, seated again, or killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from everstep.runtime.agent.environment import ERROR_FILE_VARIABLE
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.agent.workers import WorkerEnd, Workers, WorkerSpec
from everstep.runtime.protocol.survivor_link import SOCKET_NAME
from everstep.runtime.protocol.worker_link import AGENT_VARIABLE

DEADLINE_S = 60
LEAVES = """
import os, sys
from everstep.runtime.protocol.survivor_link import *
link = SurvivorLink.from_environment()
print("round", os.environ["EVERSTEP_ROUND"], flush=True)
while os.environ["EVERSTEP_ROUND"] != "3":
    link.receive()
    link.send(Left(int(os.environ["EVERSTEP_ROUND"])))
    seat, files = link.receive()
    for stream, file in enumerate(files, start=1):
        os.dup2(file, stream)
        os.close(file)
    os.environ.update(seat.environment)
    link.send(Seated(seat.round))
    print("round", seat.round, seat.restores, os.getpid() == int(sys.argv[1] or os.getpid()), flush=True)
"""
STAYS = """
import threading
from everstep.runtime.protocol.survivor_link import SurvivorLink
link = SurvivorLink.from_environment()
print("connected", flush=True)
threading.Event().wait()
"""
PLAIN = "import threading\nprint('connected', flush=True)\nthreading.Event().wait()\n"


@dataclass
class Node:
    """A node's workers, and the log that they write to."""

    workers: Workers
    folder: Path
    command: Sequence[str]
    log: int
    ends: "asyncio.Queue[WorkerEnd]" = field(default_factory=asyncio.Queue)

    def start(self, round_: int) -> list[int]:
        """Start the round's one worker, or seat it again."""
        output = NodeLog(self.log, self.folder).open(0, round_)
        environment = {
            "RANK": str(round_), "EVERSTEP_ROUND": str(round_), AGENT_VARIABLE: str(self.folder / "link"),
            TRACEBACK_VARIABLE: str(self.folder / "traceback"), ERROR_FILE_VARIABLE: output.error_file,
        }  # fmt: skip
        return self.workers.start(round_, round_ > 1, [WorkerSpec(environment, tuple(self.command), output)])

    async def wait_for(self, words: str) -> None:
        """Wait until the log has these words."""
        while words not in (self.folder / "log").read_text():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def node(folder: Path, script: str) -> AsyncIterator[Node]:
    (folder / "train.py").write_text(script)
    log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    command = [str(folder / "train.py"), ""]
    ends: asyncio.Queue[WorkerEnd] = asyncio.Queue()
    workers = Workers(command, (), ends.put_nowait)
    try:
        async with asyncio.timeout(DEADLINE_S):
            workers.open(folder / SOCKET_NAME)
            await workers.wait_until_ready(False)
            yield Node(workers, folder, command, log, ends)
    finally:
        await workers.close()
        os.close(log)


def test_a_worker_that_leaves_its_round_is_seated_again_with_a_new_environment_and_output(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, LEAVES) as one:
            assert one.start(1) == []
            await one.wait_for("[1] round 1")
            before = one.workers.pids()
            for round_ in (2, 3):
                one.workers.end_round(round_ - 1)
                assert await one.workers.wait_until_free() == []
                assert one.start(round_) == [0]
                await one.wait_for(f"[{round_}] round {round_} True True")
                assert one.workers.pids() in (before, {})
            end = await one.ends.get()
            assert (end.round, end.exit_code) == (3, 0)

    asyncio.run(story())


@pytest.mark.parametrize(("script", "lines"), [(STAYS, 1), (PLAIN, 0)], ids=["connected", "not connected"])
def test_a_worker_that_does_not_leave_its_round_is_killed_and_started_anew(
    tmp_path: Path, script: str, lines: int
) -> None:
    async def story() -> None:
        async with node(tmp_path, script) as one:
            one.start(1)
            await one.wait_for("connected")
            one.workers.end_round(1)
            told = await one.workers.wait_until_free()
            assert len(told) == lines
            assert all("did not leave the round" in line for line in told)
            assert (await one.ends.get()).exit_code == -signal.SIGKILL
            assert one.start(2) == []
            await one.wait_for("[2] connected")

    asyncio.run(story())


def test_a_worker_that_dies_between_two_rounds_is_started_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with node(tmp_path, LEAVES) as one:
            one.start(1)
            await one.wait_for("[1] round 1")
            one.workers.end_round(1)
            await one.workers.wait_until_free()
            one.workers.signal_all(signal.SIGKILL)
            await one.ends.get()
            assert one.start(2) == []
            await one.wait_for("[2] round 2")

    asyncio.run(story())
