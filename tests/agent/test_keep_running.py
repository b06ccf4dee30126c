"""`python -m everstep.keep_running`: a command that goes on from round to round."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from everstep.runtime.agent.survivors import Survivors
from everstep.runtime.protocol.survivor_link import LEAVE_S, SOCKET_NAME, NextRound
from everstep.runtime.protocol.worker_link import AGENT_VARIABLE
from tests.harness import ROOT

COMMAND = 'echo first; while [ ! -e "$0" ]; do sleep 0.02; done; echo second; echo third >&2; exit 7'


def start(words: list[str], more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-m", "everstep.keep_running", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_its_command_outlives_a_round_and_writes_to_the_next_ones_streams(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def run() -> tuple[int, bytes, bytes, bytes]:
        survivors = Survivors(lambda _: seated.set(), lambda *_: None, lambda *_: None)
        seated = asyncio.Event()
        survivors.open(tmp_path / SOCKET_NAME)
        variables_set = {AGENT_VARIABLE: str(tmp_path / "link"), "EVERSTEP_ROUND": "1"}
        process = start(["sh", "-c", COMMAND, str(go)], variables_set)
        assert process.stdout is not None
        first = await asyncio.to_thread(process.stdout.readline)
        process_ids = survivors.end_round(1)
        assert await survivors.wait_until_left(process_ids, LEAVE_S) == {process.pid}
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            assert survivors.seat(process.pid, NextRound(2, {}, restores=False), out.fileno(), err.fileno())
        await asyncio.wait_for(seated.wait(), 60)
        go.touch()
        code = await asyncio.to_thread(process.wait, 60)
        survivors.close()
        return code, first, (tmp_path / "out").read_bytes(), (tmp_path / "err").read_bytes()

    assert asyncio.run(run()) == (7, b"first\n", b"second\n", b"third\n")


def test_a_command_that_is_killed_ends_it_by_the_same_signal() -> None:
    process = start(["sh", "-c", "kill -KILL $$"], {})
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_without_a_command_it_says_so() -> None:
    process = start([], {})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == b"everstep.keep_running: no command; write python -m everstep.keep_running COMMAND\n"
