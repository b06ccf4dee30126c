"""A measurement that the kernel cannot end, as it waits for a device's driver, keeps nobody else waiting."""

import asyncio
import mmap
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import msgspec
import pytest

from everstep.runtime.diagnosis import measurement_process, measurement_server
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.measurement_process import MeasurementProcess
from everstep.runtime.diagnosis.measurement_server import Answer, Begin, End, ForkReport, MeasurementServer, Request
from everstep.runtime.diagnosis.messages import Stage, StageResult

DEADLINE_S = 60.0
NOTE = b"cuda:3: memory"


@contextmanager
def unkillable(monkeypatch: pytest.MonkeyPatch, node: str) -> Iterator[None]:
    """SIGKILL does not end the fork of this node before the block is left. The forks of all others report at once."""
    holds, releases = os.pipe()
    forks, tells = os.pipe()
    kill = os.kill

    def run_fork(begin: Begin, hears: int, says: int, parent: int, note: mmap.mmap) -> NoReturn:
        if begin.node == node:
            note[: len(NOTE)] = NOTE
            os.write(tells, b"%d" % os.getpid())
            os.read(holds, 1)
        result = StageResult(begin.node, begin.round, Stage.ALONE, Measurement(begin.node, begin.host, 0.5, 0.01))
        os.write(says, msgspec.json.encode(result) + b"\n")
        os.read(hears, 1)
        os._exit(0)

    stuck = list[int]()

    def kill_others(pid: int, signum: int) -> None:
        if not stuck:
            stuck.append(int(os.read(forks, 16)))
        if pid not in stuck:
            kill(pid, signum)

    monkeypatch.setattr(measurement_server, "_run_fork", run_fork)
    monkeypatch.setattr(measurement_server, "_use_threads", lambda threads: None)
    monkeypatch.setattr(os, "kill", kill_others)
    try:
        yield
    finally:
        for pid in stuck:
            kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for end in (holds, releases, forks, tells):
            os.close(end)


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, *requests: Request) -> Iterator[Iterator[Answer]]:
    """The answers of a server whose first fork cannot be killed. Afterwards its connection ends, and with it the
    server; what it sent last can still be read, but no fork may hold the connection."""
    ours, theirs = socket.socketpair()
    ours.settimeout(DEADLINE_S)
    with unkillable(monkeypatch, "stuck"), ours, ours.makefile("rb") as lines:
        server = threading.Thread(target=MeasurementServer(theirs, 1).serve, daemon=True)
        server.start()
        for request in requests:
            ours.sendall(msgspec.json.encode(request) + b"\n")
        answers = (msgspec.json.decode(line, type=Answer) for line in lines)
        yield answers
        ours.shutdown(socket.SHUT_WR)
        server.join(DEADLINE_S)
        assert not server.is_alive()
        theirs.close()
        assert not list(answers), "no fork holds the connection"


def test_the_server_goes_on_with_other_nodes_and_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = (Begin(key, name, "a", "127.0.0.1", 1, False, 60.0) for key, name in ((1, "stuck"), (2, "other")))
    with serving(monkeypatch, stuck, End("stuck"), other) as answers:
        assert next(answer.key for answer in answers if isinstance(answer, ForkReport)) == 2


def test_a_measurement_that_hangs_in_a_driver_is_reported_with_what_it_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, Begin(1, "stuck", "a", "127.0.0.1", 1, False, 0.2)) as answers:
        measured = next(answer.result.measurement for answer in answers if isinstance(answer, ForkReport))
        assert measured.error == "its own work did not end within 0.2 s, during cuda:3: memory"
        assert measured.died


def test_a_connection_that_a_fork_holds_does_not_keep_the_process_from_being_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measurement_process, "_CLOSE_S", 0.01)

    async def story() -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        end = asyncio.get_running_loop().create_future()
        end.set_result(0)
        with theirs:
            measuring = MeasurementProcess(reader, writer, end, lambda: None)
            async with asyncio.timeout(DEADLINE_S):
                await measuring.close()
            assert measuring.lost.done()
        writer.close()

    asyncio.run(story())
