"""The output of a round that its worker has left, while another process still writes to it."""

import asyncio
import os
import shutil
from pathlib import Path

from everstep.runtime.agent.logs import LaunchLogs, LogPlan, Streams
from everstep.runtime.agent.output import Pipe

DEADLINE_S = 60


def test_an_output_that_its_worker_has_left_is_shown_until_nobody_holds_it(tmp_path: Path) -> None:
    async def story() -> None:
        shown, console = os.pipe()
        logs = LaunchLogs(LogPlan(str(tmp_path), tee=Streams(3)), "default", tmp_path, console=(console, console))
        logs.begin(0, [{}])
        before = set(os.listdir("/proc/self/fd"))
        output = logs.open(0, 0)
        (path,) = tmp_path.glob("*/attempt_0/0/stdout.log")
        held = os.dup(output.stdout)
        os.write(held, b"unfinished")
        output.close_descriptors()
        output.close_at_end()
        assert os.read(shown, 100) == b"[default0]:unfinished\n"
        os.write(held, b"later\n")
        while path.read_bytes() != b"unfinishedlater\n":
            await asyncio.sleep(0.001)
        assert os.read(shown, 100) == b"[default0]:later\n"
        os.close(held)
        while output.is_open:
            await asyncio.sleep(0.001)
        assert set(os.listdir("/proc/self/fd")) == before
        output.close()
        for file in (shown, console):
            os.close(file)

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_what_is_written_to_the_deleted_log_of_an_old_round_takes_no_room(tmp_path: Path) -> None:
    async def story() -> None:
        shown, console = os.pipe()
        logs = LaunchLogs(LogPlan(str(tmp_path), tee=Streams(1)), "default", tmp_path, console=(console, console))
        logs.begin(0, [{}])
        output = logs.open(0, 0)
        (path,) = tmp_path.glob("*/attempt_0/0/stdout.log")
        with path.open("rb") as log:
            shutil.rmtree(path.parent)
            os.write(output.stdout, b"a line\n")
            output.close_descriptors()
            output.close()
            assert log.read() == b""
        assert os.read(shown, 100) == b"[default0]:a line\n"
        for file in (shown, console):
            os.close(file)

    asyncio.run(story())


def test_a_pipe_that_nobody_holds_any_more_is_closed_at_once() -> None:
    async def story() -> None:
        lines: list[bytes] = []
        pipe = Pipe(lines.extend)
        os.write(pipe.write_end, b"one\nlast words")
        os.close(pipe.write_end)
        pipe.close_at_end()
        assert not pipe.is_open
        assert lines == [b"one", b"last words"]

    asyncio.run(story())
